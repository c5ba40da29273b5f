//! Going on from runs with the real engine: what has been done is not done again, and what is replaced is forgotten.

use serde_json::Value;

use crate::support::{Dev, Folder, text};

/// A Model and an Agent of that name; the agent has a shell.
fn agent(folder: &Folder, name: &str, script: &str) {
    let script: String = script.lines().map(|line| format!("    {line}\n")).collect();
    let manifests = format!(
        "apiVersion: cadre.dev/v1alpha1\nkind: Model\nmetadata: {{name: {name}}}\nspec:\n  provider: Scripted\n  \
         model: {name}\n  retries: 0\n  script: |\n{script}---\n\
         apiVersion: cadre.dev/v1alpha1\nkind: Agent\nmetadata: {{name: {name}}}\nspec:\n  modelRef: {{name: {name}}}\n  \
         instructions: Work.\n  retries: 2\n  delayBetweenRetriesSeconds: 0\n  \
         tools:\n  - {{type: Builtin, builtin: {{name: Shell}}}}\n"
    );
    folder.write(&format!("{name}.yaml"), &manifests);
}

fn shell(folder: &Folder, line: &str) -> String {
    format!("{{name: shell, arguments: {{command: \"echo {line} >> {}\"}}}}", folder.beside("ledger").display())
}

/// Runs a command that must end so; its answer as JSON.
fn json(dev: &Dev, code: i32, args: &[&str]) -> Value {
    let output = dev.cadre(&[args, &["-o", "json"]].concat()).output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{err}"))
}

fn get(dev: &Dev, path: &str) -> Value {
    let answer = dev.http(&format!("GET {path} HTTP/1.1\r\nHost: {}", dev.address()));
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn id(run: &Value) -> &str {
    run["run_id"].as_str().unwrap()
}

#[test]
fn a_run_that_failed_goes_on_and_a_fork_begins_where_it_is_told() {
    let folder = Folder::new();
    let [one, two, three] = ["1", "2", "3"].map(|line| shell(&folder, line));
    let script = format!(
        "- {{text: Step one., tools: [{one}, {two}]}}\n- {{tools: [{three}]}}\n\
         - {{text: All is done., fail: {{category: authentication, message: no key, times: 1}}}}"
    );
    agent(&folder, "worker", &script);
    let dev = Dev::start(&folder);
    let failed = json(&dev, 1, &["run", "agent/worker", "go", "--session", "s"]);
    assert_eq!((&failed["status"], &failed["content"]), (&Value::from("ERROR"), &Value::from("no key")));
    assert_eq!(failed["metadata"]["retryable"], false, "and so it was not tried again");
    assert_eq!(folder.ledger(), ["1", "2", "3"]);

    let done = json(&dev, 0, &["continue", id(&failed)]);
    assert_eq!((id(&done), &done["content"]), (id(&failed), &Value::from("All is done.")));
    assert_eq!(done["metadata"]["attempts"], 2);
    assert_eq!(folder.ledger(), ["1", "2", "3"], "each call ran once");
    let tools: Vec<&Value> = done["tools"].as_array().unwrap().iter().map(|tool| &tool["tool_call_error"]).collect();
    assert_eq!(tools, [false, false, false]);
    let (log, _) = text(&dev.cadre(&["logs", id(&done), "-o", "ndjson"]).output().unwrap());
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let at = names.iter().position(|name| *name == "RunError").unwrap();
    assert_eq!((names[at + 1], names.last()), ("RunContinued", Some(&"RunCompleted")), "{names:?}");
    let numbers: Vec<u64> = events.iter().map(|event| event["event_index"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");

    // user | one, two, results | three, result | answer
    let path = format!("/agents/worker/runs/{}/checkpoints?session_id=s", id(&done));
    let places: Vec<u64> = get(&dev, &path)["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|checkpoint| checkpoint["message_index"].as_u64().unwrap())
        .collect();
    assert_eq!(places, [1, 4, 6, 7]);
    let fork = json(&dev, 0, &["continue", id(&done), "--from", "5"]);
    assert_eq!((&fork["forked_from_run_id"], &fork["forked_from_message_index"]), (&done["run_id"], &Value::from(4)));
    assert_eq!((&fork["content"], fork["messages"].as_array().unwrap().len()), (&done["content"], 7));
    assert_eq!(folder.ledger(), ["1", "2", "3", "3"], "only the call behind that place ran");
    let again = get(&dev, &format!("/agents/worker/runs/{}?session_id=s", id(&done)));
    assert_eq!(again, done, "the old one is as it was");
}

#[test]
fn what_is_replaced_or_kept_is_what_the_next_turn_knows() {
    let folder = Folder::new();
    agent(&folder, "parrot", "- \"You said: {{input}}. Before: {{previous}}\"");
    let dev = Dev::start(&folder);
    let run = |text: &str| json(&dev, 0, &["run", "agent/parrot", text, "--session", "s"]);
    let first = run("one");
    let more = json(&dev, 0, &["continue", id(&first), "two"]);
    assert_eq!(more["content"], "You said: two. Before: You said: one. Before: ");
    let messages = more["messages"].as_array().unwrap().len() as u64;
    // Asked and answered: one, two, three. The new turn's prompt has each message once.
    let third = run("three");
    assert_eq!(third["content"], format!("You said: three. Before: {}", more["content"].as_str().unwrap()));
    let session = get(&dev, "/sessions/s/runs");
    assert_eq!((session.as_array().unwrap().len(), messages), (3, 4));

    let broken = "```script\n- fail: {category: authentication}\n```";
    let failed = json(&dev, 1, &["continue", id(&third), broken, "--regenerate"]);
    assert_eq!(failed["regenerated_from"], third["run_id"]);
    let replaced = get(&dev, &format!("/agents/parrot/runs/{}?session_id=s", id(&third)));
    assert_eq!(replaced["status"], "REGENERATED");
    let (list, _) = text(&dev.cadre(&["runs", "--session", "s"]).output().unwrap());
    assert!(list.contains("REGENERATED"), "{list}");
    let last = run("four");
    assert_eq!(last["content"], format!("You said: four. Before: {}", more["content"].as_str().unwrap()));
}

#[test]
fn failures_that_may_pass_are_tried_again_under_the_same_id() {
    let folder = Folder::new();
    let one = shell(&folder, "1");
    let script = format!(
        "- {{tools: [{one}], fail: {{category: provider, times: 1}}}}\n- {{text: Done., fail: {{category: network, times: 1}}}}"
    );
    agent(&folder, "stubborn", &script);
    let dev = Dev::start(&folder);
    let (log, _) = text(&dev.cadre(&["run", "agent/stubborn", "go", "-o", "ndjson"]).output().unwrap());
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let retries: Vec<(u64, u64)> = events
        .iter()
        .filter(|event| event["type"] == "retry")
        .map(|event| (event["attempt"].as_u64().unwrap(), event["attempts"].as_u64().unwrap()))
        .collect();
    assert_eq!(retries, [(2, 3), (3, 3)]);
    assert_eq!(folder.ledger(), ["1"]);
    let (run_id, session) = (events[0]["run_id"].as_str().unwrap(), events[0]["session_id"].as_str().unwrap());
    let run = get(&dev, &format!("/agents/stubborn/runs/{run_id}?session_id={session}"));
    assert_eq!((&run["status"], &run["metadata"]["attempts"]), (&Value::from("COMPLETED"), &Value::from(3)));
    assert_eq!(run["tools"].as_array().unwrap().len(), 1);
}
