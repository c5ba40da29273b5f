//! Objects that name what is not there yet say so, and heal when it comes, without an edit.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use cadre_e2e::story::objects::{model, run, scripted, secret, talker};
use cadre_e2e::story::{NAMESPACE, Story, condition};
use serde_json::{Value, json};

fn message(object: &Value, kind: &str) -> String {
    condition(object, kind)["message"].as_str().unwrap_or_default().to_owned()
}

fn reason(object: &Value, kind: &str) -> Value {
    condition(object, kind)["reason"].clone()
}

/// Waits for words in a condition's message: states that pass and the one that stays may share a reason.
fn until_said(story: &Story, plural: &str, name: &str, kind: &str, words: &str) -> Value {
    let what = format!("to say {words:?}");
    story.kubernetes.wait(NAMESPACE, plural, name, &what, |object| message(object, kind).contains(words)).unwrap()
}

/// Waits for a reason of a condition.
fn until(story: &Story, plural: &str, name: &str, kind: &str, wanted: &str) -> Value {
    let what = format!("to say {wanted}");
    story.kubernetes.wait(NAMESPACE, plural, name, &what, |object| reason(object, kind) == wanted).unwrap()
}

#[test]
fn an_agent_waits_for_its_model() {
    let story = Story::begin().unwrap();
    let (agent, model, job) = (story.name("agent"), story.name("model"), story.name("run"));
    story.apply_all(&[talker(&agent, &model), run(&job, &agent, "hello", &json!({}))]).unwrap();
    let waiting = until(&story, "agents", &agent, "Ready", "ModelNotFound");
    assert_eq!(condition(&waiting, "Reconciling")["status"], "True");
    assert_eq!(condition(&waiting, "Stalled"), Value::Null, "nothing is wrong with the Agent itself");
    assert_eq!(message(&waiting, "Ready"), format!("Model {model:?} does not exist in this namespace"));
    let pending = until_said(&story, "runs", &job, "Ready", &model);
    assert_eq!(pending["status"]["phase"], "Pending");

    story.apply(&scripted(&model, &json!(["You said {{input}}."]))).unwrap();
    let healed = story.condition("agents", &agent, "Ready", "True").unwrap();
    assert_eq!(healed["metadata"]["generation"], waiting["metadata"]["generation"], "nobody edited it");
    assert_eq!(condition(&healed, "Reconciling"), Value::Null);
    let done = story.finished(&job).unwrap();
    assert_eq!(done["status"]["output"], "You said hello.", "{done:#}");
}

#[test]
fn a_run_waits_for_its_agent() {
    let story = Story::begin().unwrap();
    let (agent, model, job) = (story.name("late"), story.name("model"), story.name("run"));
    story.apply(&run(&job, &agent, "hello", &json!({}))).unwrap();
    until(&story, "runs", &job, "Ready", "AgentNotFound");
    story.apply_all(&[scripted(&model, &json!(["here"])), talker(&agent, &model)]).unwrap();
    assert_eq!(story.finished(&job).unwrap()["status"]["phase"], "Completed");
}

/// Runs the command that a message ends with, as a user who reads it would.
fn obey(story: &Story, message: &str) {
    let (_, command) = message.split_once(": kubectl ").unwrap();
    let arguments: Vec<_> = command.split_whitespace().collect();
    story.cluster.run(&arguments).unwrap();
}

#[test]
fn a_model_says_what_its_secret_lacks() {
    let story = Story::begin().unwrap();
    let (name, agent, key) = (story.name("model"), story.name("agent"), story.name("key"));
    let auth = json!({"secretRef": {"name": key, "key": "api-key"}});
    let spec = json!({
        "provider": "OpenAICompatible", "model": "m", "baseUrl": "https://models.example.com/v1", "auth": auth
    });
    story.apply_all(&[model(&name, &spec), talker(&agent, &name)]).unwrap();

    let missing = until(&story, "models", &name, "CredentialResolved", "CredentialMissing");
    let expected = format!(
        "Secret {NAMESPACE}/{key} does not exist: kubectl cadre credential create {key} -n {NAMESPACE} \
         --from-env VARIABLE --key api-key --hosts models.example.com"
    );
    assert_eq!(message(&missing, "CredentialResolved"), expected);
    assert_eq!(condition(&missing, "Reconciling")["status"], "True");
    // Before the Model has been looked at, the reason is the same, and the Secret not yet known.
    let agent_waits = until_said(&story, "agents", &agent, "Ready", &key);
    assert_eq!(reason(&agent_waits, "Ready"), "ModelNotReady");

    story.apply(&secret(&key, "another", "value")).unwrap();
    let no_key = until_said(&story, "models", &name, "CredentialResolved", "has no key \"api-key\"");
    assert_eq!(reason(&no_key, "CredentialResolved"), "CredentialMissing");

    story.apply(&secret(&key, "api-key", "value")).unwrap();
    let unlabelled = until_said(&story, "models", &name, "CredentialResolved", "is not labelled as a credential");
    assert_eq!(reason(&unlabelled, "CredentialResolved"), "CredentialNotAllowed");
    obey(&story, &message(&unlabelled, "CredentialResolved"));

    let words = "may not go to models.example.com";
    let wrong_host = until_said(&story, "models", &name, "CredentialResolved", words);
    obey(&story, &message(&wrong_host, "CredentialResolved"));

    let healed = story.condition("models", &name, "Ready", "True").unwrap();
    assert_eq!(healed["metadata"]["generation"], 1, "nobody edited it");
    story.condition("agents", &agent, "Ready", "True").unwrap();

    // What is taken away is missed as well.
    story.cluster.run(&["label", "secret", &key, "-n", NAMESPACE, "cadre.dev/credential-"]).unwrap();
    until(&story, "models", &name, "CredentialResolved", "CredentialNotAllowed");
    until(&story, "agents", &agent, "Ready", "ModelNotReady");
}

#[test]
fn a_suspended_agent_refuses_and_says_why() {
    let story = Story::begin().unwrap();
    let (agent, model) = (story.name("agent"), story.name("model"));
    let mut suspended = talker(&agent, &model);
    suspended["spec"]["suspend"] = json!(true);
    story.apply_all(&[scripted(&model, &json!(["hello"])), suspended]).unwrap();
    let resting = until(&story, "agents", &agent, "Ready", "Suspended");
    assert_eq!((condition(&resting, "Reconciling"), condition(&resting, "Stalled")), (Value::Null, Value::Null));

    story.api.knows(&agent, false).unwrap();
    let path = format!("/agents/{agent}/runs");
    let refused = story.api.once("POST", &path, &[], &[("message", "hi"), ("stream", "false")]).unwrap();
    let status = refused.status;
    let text = refused.text().unwrap();
    assert!(status == 409 || status == 503, "{status} {text}");
    assert!(text.contains("spec.suspend is set") && text.contains("agent_not_ready"), "{text}");

    story.kubernetes.merge(NAMESPACE, "agents", &agent, &json!({"spec": {"suspend": false}})).unwrap();
    story.ready(&agent).unwrap();
    let run = story.api.start(&agent, "hi", None).unwrap();
    assert_eq!(story.api.ended(&run).unwrap()["content"], "hello");
}

#[test]
fn malformed_agents_are_refused_with_the_reason() {
    let story = Story::begin().unwrap();
    let name = story.name("bad");
    let shell = json!({"type": "Builtin", "builtin": {"name": "Shell"}});
    let table: &[(Value, &str)] = &[
        (json!({"modelRef": {"name": "m"}, "instructions": 7}), "must be of type string"),
        (
            json!({"modelRef": {"name": "m"}, "toolChoice": "Sometimes"}),
            "supported values: \"Auto\", \"None\", \"Required\"",
        ),
        (json!({"modelRef": {"name": "m"}, "tools": [{"type": "Builtin"}]}), "type Builtin needs the member builtin"),
        (json!({"instructions": "x"}), "spec.modelRef: Required value"),
        (json!({"modelRef": {"name": "m"}, "instructions": "x".repeat(1 << 20)}), "may not be more than 100000"),
    ];
    for (spec, expected) in table {
        let object = cadre_e2e::story::objects::object("Agent", &name, spec);
        let refused = story.kubernetes.create(NAMESPACE, &object).unwrap_err().to_string();
        assert!(refused.contains(expected), "{expected:?} is not in {refused:.600}");
    }
    // What only the operator can tell is on the object.
    let model = story.name("model");
    story.apply(&scripted(&model, &json!(["hello"]))).unwrap();
    let twice = json!({"modelRef": {"name": model}, "tools": [shell.clone(), shell]});
    story.apply(&cadre_e2e::story::objects::object("Agent", &name, &twice)).unwrap();
    let stalled = story.condition("agents", &name, "Stalled", "True").unwrap();
    assert_eq!(message(&stalled, "Stalled"), "spec.tools has Shell twice");
}
