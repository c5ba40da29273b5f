//! Runs end early when told so, in each way there is; and their objects go when their time has come.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use cadre_e2e::story::api::Started;
use cadre_e2e::story::follow::Follower;
use cadre_e2e::story::objects::{run, scripted, shell, talker, worker};
use cadre_e2e::story::{LIMIT, NAMESPACE, Story, condition};
use cadre_e2e::wait;
use serde_json::json;

/// An agent whose tool would take very long.
fn slow(story: &Story) -> String {
    let (agent, model) = (story.name("slow"), story.name("slow-m"));
    let turns = json!([shell("echo call-1 begins; sleep 1000"), "never said"]);
    story.apply_all(&[scripted(&model, &turns), worker(&agent, &model, &json!({}))]).unwrap();
    story.ready(&agent).unwrap();
    agent
}

fn wait_for_the_tool(story: &Story, run: &Started) -> Follower {
    let mut follower = Follower::start(&story.api, run);
    follower.until("the start of the tool", |frame| frame.event == "ToolCallStarted").unwrap();
    follower
}

fn last_event(follower: Follower) -> String {
    follower.finish().unwrap().0.last().unwrap().event.clone()
}

/// Nothing of the tool is left in the sandbox.
fn no_process_is_left(story: &Story, agent: &str) {
    if !story.has_own_nodes() {
        return;
    }
    let sandbox = story.container(NAMESPACE, &story.pod(agent).unwrap(), "sandbox").unwrap();
    wait::until("the tool's processes to end", LIMIT, "see ps", || Ok(sandbox.pids()?.len() == 1)).unwrap();
}

#[test]
fn a_run_object_is_cancelled_by_its_field() {
    let story = Story::begin().unwrap();
    let (agent, job) = (slow(&story), story.name("field"));
    story.apply(&run(&job, &agent, "go", &json!({}))).unwrap();
    let follower = wait_for_the_tool(&story, &story.started(&job).unwrap());
    story.kubernetes.merge(NAMESPACE, "runs", &job, &json!({"spec": {"cancel": true}})).unwrap();
    let ended = story.finished(&job).unwrap();
    assert_eq!(ended["status"]["phase"], "Cancelled");
    assert_eq!(condition(&ended, "Complete")["status"], "False");
    assert_eq!(condition(&ended, "Failed")["status"], "True");
    assert_eq!(last_event(follower), "RunCancelled");
    no_process_is_left(&story, &agent);

    let taken_back = story.kubernetes.merge(NAMESPACE, "runs", &job, &json!({"spec": {"cancel": false}}));
    assert!(taken_back.unwrap_err().to_string().contains("a cancel can't be taken back"));
}

#[test]
fn a_run_object_that_is_deleted_cancels_its_run() {
    let story = Story::begin().unwrap();
    let (agent, job) = (slow(&story), story.name("deleted"));
    story.apply(&run(&job, &agent, "go", &json!({}))).unwrap();
    let run = story.started(&job).unwrap();
    let follower = wait_for_the_tool(&story, &run);
    story.cluster.run(&["delete", "run", &job, "-n", NAMESPACE]).unwrap();
    assert_eq!(last_event(follower), "RunCancelled");
    assert_eq!(story.api.ended(&run).unwrap()["status"], "CANCELLED", "the API keeps the run");
    no_process_is_left(&story, &agent);
}

#[test]
fn a_run_is_cancelled_by_http() {
    let story = Story::begin().unwrap();
    let agent = slow(&story);
    let run = story.api.start(&agent, "go", None).unwrap();
    let follower = wait_for_the_tool(&story, &run);
    story.api.post(&format!("/agents/{agent}/runs/{}/cancel", run.run), &[]).unwrap();
    assert_eq!(last_event(follower), "RunCancelled");
    let ended = story.api.ended(&run).unwrap();
    assert_eq!((&ended["status"], &ended["cancellation_stage"]), (&json!("CANCELLED"), &json!("EXECUTING")));
    no_process_is_left(&story, &agent);
}

#[test]
fn a_waiting_run_of_a_busy_session_is_cancelled_before_it_starts() {
    let story = Story::begin().unwrap();
    let agent = slow(&story);
    let session = story.name("session");
    let first = story.api.start(&agent, "go", Some(&session)).unwrap();
    let follower = wait_for_the_tool(&story, &first);
    let second = story.api.start(&agent, "go too", Some(&session)).unwrap();
    let waiting = story.api.detail(&second).unwrap();
    assert_eq!((&waiting["status"], &waiting["waiting_on"]), (&json!("PENDING"), &json!(first.run)));
    story.api.post(&format!("/agents/{agent}/runs/{}/cancel", second.run), &[]).unwrap();
    assert_eq!(story.api.ended(&second).unwrap()["cancellation_stage"], "PENDING");
    story.api.post(&format!("/agents/{agent}/runs/{}/cancel", first.run), &[]).unwrap();
    assert_eq!(last_event(follower), "RunCancelled");
}

#[test]
fn a_finished_object_goes_and_its_run_stays() {
    let story = Story::begin().unwrap();
    let (agent, model, job) = (story.name("short"), story.name("short-m"), story.name("ttl"));
    story.apply_all(&[scripted(&model, &json!(["brief"])), talker(&agent, &model)]).unwrap();
    story.apply(&run(&job, &agent, "go", &json!({"ttlSecondsAfterFinished": 2}))).unwrap();
    // The object may be there for less time than a look takes: the API says which run it was.
    story.kubernetes.gone(NAMESPACE, "runs", &job).unwrap();
    let runs = story.api.get(&format!("/runs?agent_id={agent}")).unwrap();
    assert_eq!(runs["data"].as_array().unwrap().len(), 1, "{runs:#}");
    let word = |name: &str| runs["data"][0][name].as_str().unwrap().to_owned();
    let kept = story.api.ended(&Started { run: word("run_id"), session: word("session_id"), agent }).unwrap();
    assert_eq!((&kept["status"], &kept["content"]), (&json!("COMPLETED"), &json!("brief")));
}
