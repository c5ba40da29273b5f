//! Files that came with a turn are there in the next one, in whichever workspace that is.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cadre_e2e::story::api::Started;
use cadre_e2e::story::objects::{scripted, shell, worker};
use cadre_e2e::story::{NAMESPACE, Story};
use serde_json::{Value, json};

const CONTENT: &str = "region,amount\nMoon,7.25\n";

/// Starts a run with a file.
fn uploaded(story: &Story, agent: &str) -> Started {
    let file = json!([{"filename": "sales.csv", "mime_type": "text/csv", "content": STANDARD.encode(CONTENT)}]);
    let form =
        [("message", "read it"), ("background", "true"), ("stream", "false"), ("input_files", &file.to_string())];
    let answer = story.api.post(&format!("/agents/{agent}/runs"), &form).unwrap();
    let word = |name: &str| answer[name].as_str().unwrap().to_owned();
    Started { agent: agent.to_owned(), run: word("run_id"), session: word("session_id") }
}

/// The answer of a run, once it has ended well.
fn answer(story: &Story, started: &Started) -> String {
    let detail = story.api.ended(started).unwrap();
    assert_eq!(detail["status"], "COMPLETED", "{detail:#}");
    detail["content"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_second_turn_reads_the_first_ones_file_after_the_pod_is_lost() {
    let story = Story::begin().unwrap();
    let (agent, model) = (story.name("uploads"), story.name("uploads-m"));
    let turns = json!([shell("cat uploads/sales.csv"), "{{last_result}}"]);
    story.apply_all(&[scripted(&model, &turns), worker(&agent, &model, &json!({}))]).unwrap();
    story.ready(&agent).unwrap();
    let first = uploaded(&story, &agent);
    assert!(answer(&story, &first).contains("Moon,7.25"));

    let before = story.sandbox(&agent).unwrap();
    let (pod, uid) = (story.pod(&agent).unwrap(), &before["status"]["podUID"]);
    story.cluster.run(&["delete", "pod", &pod, "-n", NAMESPACE, "--force", "--grace-period=0"]).unwrap();
    let second = story.api.start(&agent, "read it again", Some(&first.session)).unwrap();
    let said = answer(&story, &second);
    assert!(said.contains("Moon,7.25"), "{said}");
    let after = story.sandbox(&agent).unwrap();
    assert!(after["status"]["podUID"] != *uid && after["status"]["podUID"] != Value::Null, "it was another pod");
}
