//! What does not change is not written, and a warm turn leaves Kubernetes alone. Requests are counted at the
//! kube-apiserver; that nothing else is written meanwhile is why these tests run one at a time.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cadre_e2e::story::api::Started;
use cadre_e2e::story::kubernetes::Kubernetes;
use cadre_e2e::story::objects::{run, scripted, shell, worker};
use cadre_e2e::story::{LIMIT, NAMESPACE, SYSTEM, Story};
use cadre_e2e::wait;
use serde_json::{Value, json};

/// Times that the operator looks at everything anew.
const RESYNCS: usize = 10;
/// Least time between two writes of an agent's numbers.
const PACE: Duration = Duration::from_secs(10);
/// A write is seen so soon.
const SEEN: Duration = Duration::from_secs(2);
/// Seconds that these agents' pods stay: longer than the tests take, for their end would be written.
const WARM: u32 = 3600;
/// What Cadre writes.
const RESOURCES: [&str; 8] =
    ["models", "agents", "runs", "sandboxes", "networkpolicies", "persistentvolumeclaims", "serviceaccounts", "pods"];

/// Writes that the kube-apiserver has counted, by verb and resource. Kubelets' status writes, tokens, leases and events
/// are not among them.
fn writes(story: &Story) -> BTreeMap<String, u64> {
    let metrics = story.kubernetes.text("/metrics").unwrap();
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{"));
    let mut counts = BTreeMap::new();
    for line in lines {
        let (labels, count) = line.rsplit_once("} ").unwrap();
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split_once('"').map(|(value, _)| value.to_owned())
        };
        let (verb, resource) = (label("verb").unwrap_or_default(), label("resource").unwrap_or_default());
        let subresource = label("subresource").unwrap_or_default();
        let own_status = label("group").as_deref() == Some("cadre.dev");
        let is_write = ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"].contains(&verb.as_str());
        let counts_here = subresource.is_empty() || (own_status && subresource == "status");
        if is_write && counts_here && RESOURCES.contains(&resource.as_str()) {
            *counts.entry(format!("{verb} {resource} {subresource}")).or_default() +=
                count.parse::<f64>().unwrap() as u64;
        }
    }
    counts
}

/// What has been written since.
fn since(story: &Story, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let more = |(key, count): (String, u64)| {
        let more = count.saturating_sub(before.get(&key).copied().unwrap_or_default());
        (more > 0).then_some((key, more))
    };
    writes(story).into_iter().filter_map(more).collect()
}

/// Waits until nothing that earlier tests left is still going: what is being deleted, or belongs to what is gone.
fn calm(story: &Story) {
    let items = |path: &str| -> Vec<Value> { story.kubernetes.get(path).unwrap()["items"].as_array().unwrap().clone() };
    wait::until("earlier tests' objects to be gone", LIMIT, "see kube-controller-manager", || {
        let sandboxes = items(&Kubernetes::path(NAMESPACE, "sandboxes"));
        let is_owner = |uid: &Value| sandboxes.iter().any(|sandbox| sandbox["metadata"]["uid"] == *uid);
        let stays = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let mut owners = owners.filter(|owner| owner["kind"] == "Sandbox");
            object["metadata"]["deletionTimestamp"].is_null() && owners.all(|owner| is_owner(&owner["uid"]))
        };
        let places = RESOURCES.map(|plural| Kubernetes::path(NAMESPACE, plural));
        let others = ["/api/v1/namespaces".to_owned(), Kubernetes::path(SYSTEM, "pods")];
        Ok(places.iter().chain(&others).all(|path| items(path).iter().all(stays)))
    })
    .unwrap();
}

/// Versions of all objects that Cadre writes in the stories' namespace.
fn versions(story: &Story) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for plural in RESOURCES.into_iter().filter(|plural| *plural != "pods") {
        let list = story.kubernetes.get(&Kubernetes::path(NAMESPACE, plural)).unwrap();
        for object in list["items"].as_array().unwrap() {
            let name = object["metadata"]["name"].as_str().unwrap();
            all.insert(format!("{plural}/{name}"), object["metadata"]["resourceVersion"].clone());
        }
    }
    all
}

/// An agent that has run once, and whose status has nothing more to tell.
fn settled(story: &Story, base: &str) -> Started {
    let (agent, model) = (story.name(base), story.name(&format!("{base}-m")));
    let turns = json!([shell("date >> log; wc -l log"), "{{last_result}}"]);
    let sandbox = json!({"sandbox": {"warmSeconds": WARM}});
    story.apply_all(&[scripted(&model, &turns), worker(&agent, &model, &sandbox)]).unwrap();
    story.ready(&agent).unwrap();
    let started = story.api.start(&agent, "first", None).unwrap();
    assert_eq!(story.api.ended(&started).unwrap()["status"], "COMPLETED");
    let told = |agent: &Value| agent["status"]["lastRun"]["phase"] == "Completed" && agent["status"]["activeRuns"] == 0;
    story.kubernetes.wait(NAMESPACE, "agents", &agent, "to tell of its run", told).unwrap();
    started
}

#[test]
fn ten_looks_at_unchanged_objects_write_nothing() {
    let story = Story::begin().unwrap();
    let agent = settled(&story, "resync").agent;
    let job = story.name("resync-r");
    story.apply(&run(&job, &agent, "an object", &json!({}))).unwrap();
    story.finished(&job).unwrap();
    let second =
        |agent: &Value| agent["status"]["activeRuns"] == 0 && agent["status"]["lastRun"]["id"] == run_id(&story, &job);
    story.kubernetes.wait(NAMESPACE, "agents", &agent, "to tell of its run", second).unwrap();
    calm(&story);
    let (before, objects) = (writes(&story), versions(&story));
    for _ in 0..RESYNCS {
        // A new process lists and reconciles everything from nothing.
        let pod = story.system_pod("operator").unwrap();
        story.cluster.run(&["delete", "pod", &pod, "-n", SYSTEM, "--wait=false"]).unwrap();
        let next = story.system_pod("operator").unwrap();
        assert_ne!(next, pod);
        reconciled_all(&story, &next, objects.len());
    }
    // Its own pods come and go, by other hands than Cadre's.
    let mut written = since(&story, &before);
    written.retain(|write, _| !write.contains(" pods "));
    assert_eq!(written, BTreeMap::new());
    assert_eq!(versions(&story), objects);
}

fn run_id(story: &Story, job: &str) -> String {
    story.started(job).unwrap().run
}

/// Waits until an operator leads and has looked at each of Cadre's objects.
fn reconciled_all(story: &Story, pod: &str, most: usize) {
    let mut kinds = BTreeMap::new();
    for plural in ["models", "agents", "runs", "sandboxes"] {
        let list = story.kubernetes.get(&Kubernetes::path(NAMESPACE, plural)).unwrap();
        kinds.insert(plural, list["items"].as_array().unwrap().len() as f64);
    }
    assert!(kinds.values().sum::<f64>() as usize <= most);
    let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/metrics");
    wait::until("the operator to look at everything", LIMIT, "read its log", || {
        let metrics = story.kubernetes.text(&path)?;
        let looked = |kind: &str| -> f64 {
            let prefix = format!("cadre_operator_reconciles_total{{kind=\"{kind}\"");
            let lines = metrics.lines().filter(|line| line.starts_with(&prefix));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        let fed = metrics.contains("cadre_operator_feed_connected 1");
        let names = [("models", "Model"), ("agents", "Agent"), ("runs", "Run"), ("sandboxes", "Sandbox")];
        Ok(fed && names.iter().all(|(plural, kind)| looked(kind) >= kinds[plural]))
    })
    .unwrap();
}

#[test]
fn a_warm_turn_writes_nothing_to_kubernetes() {
    let story = Story::begin().unwrap();
    calm(&story);
    let Started { agent, session, run: _ } = settled(&story, "warm");
    // The second turn is like any further one: only the agent's last run is news, and that waits for its ten seconds.
    let (before, began) = (writes(&story), Instant::now());
    let path = format!("/agents/{agent}/runs");
    let form = [("message", "second"), ("stream", "false"), ("session_id", session.as_str())];
    let answer = story.api.post(&path, &form).unwrap();
    assert_eq!(answer["status"], "COMPLETED", "{answer:#}");
    assert!(answer["content"].as_str().unwrap().contains("2 log"), "the same workspace: {answer:#}");
    let mut written = since(&story, &before);
    // On a machine that needs longer than that for a turn, these have passed, counted from the write that was waited for.
    let most = (began.elapsed() + SEEN).as_secs() / PACE.as_secs();
    written.retain(|write, count| !write.ends_with(" agents status") || *count > most);
    assert_eq!(written, BTreeMap::new());
    // That write, and with it all that the turn ever causes.
    let told =
        |agent: &Value| agent["status"]["lastRun"]["id"] == answer["run_id"] && agent["status"]["activeRuns"] == 0;
    story.kubernetes.wait(NAMESPACE, "agents", &agent, "to tell of its last run", told).unwrap();
    let most = (began.elapsed() + SEEN).as_secs() / PACE.as_secs() + 1;
    let mut written = since(&story, &before);
    written.retain(|write, count| !write.ends_with(" agents status") || *count > most);
    assert_eq!(written, BTreeMap::new());
}
