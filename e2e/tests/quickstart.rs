//! What the README promises: apply the example, wait, and read an answer that was computed from the file.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use cadre_e2e::story::{NAMESPACE, Story, condition};
use serde_json::{Value, json};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/quickstart");
const RUN: &str = "sales-report";

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// The example belongs to the user: what was there before the test stays.
struct Example<'a> {
    story: &'a Story,
    was_there: bool,
}

impl Drop for Example<'_> {
    fn drop(&mut self) {
        if !self.was_there {
            let _ = self.story.cluster.run(&["delete", "-n", NAMESPACE, "-f", EXAMPLE, "--ignore-not-found"]);
            // They would stay for a while, and go while another test counts what is written.
            let label = "cadre.dev/agent=analyst";
            let _ = self.story.cluster.run(&["delete", "sandboxes", "-n", NAMESPACE, "-l", label, "--wait=false"]);
        }
    }
}

#[test]
fn the_example_answers_with_the_files_numbers() {
    let story = Story::begin().unwrap();
    let was_there = story.kubernetes.object(NAMESPACE, "agents", "analyst").unwrap().is_some();
    let _example = Example { story: &story, was_there };
    story.cluster.run(&["delete", "run", RUN, "-n", NAMESPACE, "--ignore-not-found"]).unwrap();
    story.cluster.run(&["apply", "-n", NAMESPACE, "-f", EXAMPLE]).unwrap();
    let complete = ["wait", "-n", NAMESPACE, "--for=condition=Complete", "--timeout=300s", "run/sales-report"];
    story.cluster.run(&complete).unwrap();

    let run = story.kubernetes.object(NAMESPACE, "runs", RUN).unwrap().unwrap();
    // Sums of the amounts in 30-run.yaml.
    let output = text(&run, "/status/output");
    for line in ["North   14573.54", "East    12450.40", "South    9960.10", "West     9261.15"] {
        assert!(output.contains(line), "{line} is missing: {output}");
    }
    assert_eq!(text(&run, "/status/phase"), "Completed");
    assert_eq!(run["status"]["attempts"], 1);
    assert!(run["status"]["usage"]["totalTokens"].as_u64() > Some(0), "{run:#}");
    assert!(text(&run, "/status/startTime") <= text(&run, "/status/completionTime"));
    assert_eq!(condition(&run, "Ready")["status"], "True");

    let events = story.events(&run, "RunCompleted").unwrap();
    let submitted = events.iter().position(|reason| reason == "RunSubmitted").unwrap();
    let (waited, ran) = events.split_at(submitted);
    assert_eq!(ran, ["RunSubmitted", "RunCompleted"]);
    // Agent and Run are applied at once: the Run may be seen first.
    let waits = ["AgentNotFound", "ApiServerUnavailable"];
    assert!(waited.iter().all(|reason| waits.contains(&reason.as_str())), "{events:?}");
    let described = story.cluster.run(&["describe", "-n", NAMESPACE, "run", RUN]).unwrap();
    for word in ["RunSubmitted", "RunCompleted", "Complete", text(&run, "/status/runId")] {
        assert!(described.contains(word), "describe doesn't say {word}:\n{described}");
    }
    let agent = story.condition("agents", "analyst", "Ready", "True").unwrap();
    assert!(text(&agent, "/status/revision").len() >= 32, "{agent:#}");
    let session = text(&run, "/status/sessionId");
    let sandboxes =
        story.kubernetes.get(&cadre_e2e::story::kubernetes::Kubernetes::path(NAMESPACE, "sandboxes")).unwrap();
    let sandbox =
        sandboxes["items"].as_array().unwrap().iter().find(|one| one["spec"]["sessionId"] == session).unwrap();
    story.condition("sandboxes", text(sandbox, "/metadata/name"), "NetworkIsolated", "True").unwrap();

    applying_again_runs_nothing(&story, &run);
    another_run_has_a_session_and_files_of_its_own(&story, &run);
}

fn applying_again_runs_nothing(story: &Story, run: &Value) {
    let versions = || {
        let names = [("models", "quickstart"), ("agents", "analyst"), ("runs", RUN)];
        names.map(|(plural, name)| {
            let object = story.kubernetes.object(NAMESPACE, plural, name).unwrap().unwrap();
            (object["metadata"]["uid"].clone(), object["metadata"]["generation"].clone())
        })
    };
    let before = versions();
    story.cluster.run(&["apply", "-n", NAMESPACE, "-f", EXAMPLE]).unwrap();
    assert_eq!(versions(), before);
    let now = story.kubernetes.object(NAMESPACE, "runs", RUN).unwrap().unwrap();
    assert_eq!(now["status"], run["status"]);
}

fn another_run_has_a_session_and_files_of_its_own(story: &Story, first: &Value) {
    let name = story.name("report");
    let file = json!({"name": "sales.csv", "content": "date,region,product,amount\n2026-01-01,Moon,Rope,7.25\n"});
    let parts = json!([{"type": "Text", "text": "Which region?"}, {"type": "File", "file": file}]);
    let run = json!({
        "apiVersion": "cadre.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
        "spec": {"target": {"name": "analyst"}, "input": {"type": "Parts", "parts": parts}},
    });
    story.apply(&run).unwrap();
    let second = story.finished(&name).unwrap();
    assert_eq!(text(&second, "/status/phase"), "Completed", "{second:#}");
    let output = text(&second, "/status/output");
    assert!(output.contains("Moon        7.25") && !output.contains("14573"), "{output}");
    for id in ["/status/runId", "/status/sessionId"] {
        assert_ne!(text(&second, id), text(first, id));
    }
}
