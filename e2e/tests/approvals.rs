//! A Run object waits for a person, as its status says; the answer comes through the API, and the pod may go meanwhile.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use cadre_e2e::story::api::Started;
use cadre_e2e::story::objects::{careful, run, scripted, shell};
use cadre_e2e::story::{NAMESPACE, Story, condition};
use serde_json::{Value, json};

/// An agent that runs one command, once a person allows it.
fn agent(story: &Story) -> String {
    let (agent, model) = (story.name("careful"), story.name("careful-m"));
    let turns = json!([shell("echo call-1 ran"), "It said: {{last_result}}"]);
    story.apply_all(&[scripted(&model, &turns), careful(&agent, &model)]).unwrap();
    story.ready(&agent).unwrap();
    agent
}

/// A Run object that waits, and what it waits for.
fn paused(story: &Story, agent: &str, name: &str) -> (Started, Value) {
    story.apply(&run(name, agent, "go", &json!({}))).unwrap();
    let object = story.condition("runs", name, "Paused", "True").unwrap();
    assert_eq!(object["status"]["phase"], "Paused");
    assert_eq!(condition(&object, "Finished")["status"], "False");
    let run = story.started(name).unwrap();
    let detail = story.api.detail(&run).unwrap();
    let tool = detail["requirements"][0]["tool_execution"].clone();
    let pending = json!([{"id": tool["tool_call_id"], "tool": "shell"}]);
    assert_eq!(object["status"]["pendingApprovals"], pending);
    (run, tool)
}

fn answer(story: &Story, run: &Started, tool: &Value, yes: bool) -> Value {
    let mut tool = tool.clone();
    tool["confirmed"] = json!(yes);
    let tools = json!([tool]).to_string();
    let form = [("session_id", run.session.as_str()), ("tools", &tools), ("stream", "false"), ("background", "true")];
    story.api.post(&format!("/agents/{}/runs/{}/continue", run.agent, run.run), &form).unwrap()
}

#[test]
fn an_approved_call_runs_though_its_pod_has_gone() {
    let story = Story::begin().unwrap();
    let agent = agent(&story);
    let name = story.name("approved");
    let (run, tool) = paused(&story, &agent, &name);
    let pod = story.pod(&agent).unwrap();
    story.cluster.run(&["delete", "pod", &pod, "-n", NAMESPACE, "--wait=false"]).unwrap();
    assert_eq!(story.api.detail(&run).unwrap()["status"], "PAUSED");
    let mut changed = tool.clone();
    changed["tool_args"]["command"] = json!("echo something else");
    changed["confirmed"] = json!(true);
    let tools = json!([changed]).to_string();
    let form = [("session_id", run.session.as_str()), ("tools", tools.as_str())];
    let refused = story.api.once("POST", &format!("/agents/{agent}/runs/{}/continue", run.run), &[], &form).unwrap();
    assert_eq!(refused.status, 400);
    answer(&story, &run, &tool, true);
    let ended = story.finished(&name).unwrap();
    assert_eq!(ended["status"]["phase"], "Completed");
    assert_eq!(condition(&ended, "Paused")["status"], "False");
    assert_eq!(ended["status"]["pendingApprovals"], Value::Null);
    let detail = story.api.ended(&run).unwrap();
    assert!(detail["content"].as_str().unwrap().contains("call-1 ran"), "{detail}");
    assert_eq!(detail["tools"].as_array().unwrap().len(), 1);
}

#[test]
fn a_rejected_call_does_not_run_and_the_model_goes_on() {
    let story = Story::begin().unwrap();
    let agent = agent(&story);
    let name = story.name("rejected");
    let (run, tool) = paused(&story, &agent, &name);
    answer(&story, &run, &tool, false);
    assert_eq!(story.finished(&name).unwrap()["status"]["phase"], "Completed");
    let detail = story.api.ended(&run).unwrap();
    assert!(detail["content"].as_str().unwrap().contains("The user rejected this call"), "{detail}");
}

#[test]
fn a_paused_run_object_can_be_cancelled() {
    let story = Story::begin().unwrap();
    let agent = agent(&story);
    let name = story.name("dropped");
    let (run, _) = paused(&story, &agent, &name);
    story.kubernetes.merge(NAMESPACE, "runs", &name, &json!({"spec": {"cancel": true}})).unwrap();
    assert_eq!(story.finished(&name).unwrap()["status"]["phase"], "Cancelled");
    assert_eq!(story.api.ended(&run).unwrap()["cancellation_stage"], "PAUSED");
}
