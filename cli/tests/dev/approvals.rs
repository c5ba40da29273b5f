//! Runs that wait for a person, with the real engine: nothing runs without a yes, and everything once.

use serde_json::Value;

use crate::support::{Dev, Folder, text, until};

/// An agent whose shell waits as the gate says; each turn of its model notes a line in the ledger.
fn agent(folder: &Folder, name: &str, gate: &str, turns: &str) {
    let ledger = folder.beside("ledger");
    let turns: String =
        turns.replace("LEDGER", &ledger.display().to_string()).lines().map(|it| format!("    {it}\n")).collect();
    let manifests = format!(
        "apiVersion: cadre.dev/v1alpha1\nkind: Model\nmetadata: {{name: {name}}}\nspec:\n  provider: Scripted\n  \
         model: {name}\n  script: |\n{turns}---\n\
         apiVersion: cadre.dev/v1alpha1\nkind: Agent\nmetadata: {{name: {name}}}\nspec:\n  modelRef: {{name: {name}}}\n  \
         instructions: Work.\n  tools:\n  - {{type: Builtin, builtin: {{name: Shell}}, {gate}}}\n"
    );
    folder.write(&format!("{name}.yaml"), &manifests);
}

const TWO: &str = "- tools:\n  - {name: shell, arguments: {command: \"echo 1 >> LEDGER\"}}\n  - {name: shell, arguments: {command: \"echo 2 >> LEDGER\"}}\n- \"Done: {{last_result}}\"";

/// Runs a command that must end so; what it said.
fn cadre(dev: &Dev, code: i32, args: &[&str]) -> (String, String) {
    let output = dev.cadre(args).output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    (out, err)
}

fn json(dev: &Dev, code: i32, args: &[&str]) -> Value {
    let (out, err) = cadre(dev, code, &[args, &["-o", "json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{err}"))
}

fn id(run: &Value) -> &str {
    run["run_id"].as_str().unwrap()
}

fn calls(run: &Value) -> Vec<&str> {
    let requirements = run["requirements"].as_array().map(Vec::as_slice).unwrap_or_default();
    requirements.iter().map(|it| it["tool_execution"]["tool_call_id"].as_str().unwrap()).collect()
}

#[test]
fn a_run_waits_for_a_yes_to_each_call_and_goes_on_after_the_last() {
    let folder = Folder::new();
    agent(&folder, "careful", "requireApproval: [shell]", TWO);
    let dev = Dev::start(&folder);
    let (_, shown) = cadre(&dev, 3, &["run", "agent/careful", "go", "--session", "a"]);
    assert!(shown.contains("needs your yes: shell\n    command: echo 1 >> "), "{shown}");
    let run = shown.lines().find_map(|line| line.split("cadre approve ").nth(1)?.split(' ').next()).unwrap().to_owned();
    assert!(shown.contains(&format!("cadre reject {run} --note TEXT")), "{shown}");
    assert!(folder.ledger().is_empty(), "nothing has run");

    let paused = json(&dev, 3, &["run", "agent/careful", "go", "--session", "b"]);
    assert_eq!(paused["status"], "PAUSED");
    let [first, second] = calls(&paused).try_into().unwrap();
    let half = json(&dev, 3, &["approve", id(&paused), "--call", first]);
    assert_eq!(calls(&half), [second], "the other one is still open");
    assert!(folder.ledger().is_empty(), "no call runs before all are answered");
    let (_, unknown) = cadre(&dev, 1, &["approve", id(&paused), "--call", first]);
    assert!(unknown.contains("does not wait for a call"), "{unknown}");
    let done = json(&dev, 0, &["reject", id(&paused), "--note", "not that one"]);
    assert_eq!((id(&done), &done["status"]), (id(&paused), &Value::from("COMPLETED")));
    assert_eq!(folder.ledger(), ["1"]);
    let told = done["content"].as_str().unwrap();
    assert_eq!(told, "Done: The user rejected this call. It was not run. They said: not that one");
    let (_, over) = cadre(&dev, 1, &["approve", id(&done)]);
    assert!(over.contains("waits for nobody: it is COMPLETED"), "{over}");

    let (_, shown) = cadre(&dev, 0, &["approve", &run]);
    assert!(shown.contains("approved: shell\n    command: echo 1 >> ") && shown.contains("✓ completed"), "{shown}");
    assert_eq!(folder.ledger(), ["1", "1", "2"]);
    let (log, _) = cadre(&dev, 0, &["logs", &run, "-o", "ndjson"]);
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = events.iter().map(|event| event["event_index"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let at = names.iter().position(|name| *name == "RunPaused").unwrap();
    assert_eq!((names[at + 1], names.last()), ("RunContinued", Some(&"RunCompleted")), "{names:?}");
}

#[test]
fn a_pause_outlives_the_server_and_a_killed_worker_runs_nothing_twice() {
    let folder = Folder::new();
    let gate = folder.beside("gate").display().to_string();
    let turns = TWO.replace("echo 2 >> LEDGER", &format!("echo 2 >> LEDGER; until [ -e {gate} ]; do sleep 0.05; done"));
    agent(&folder, "careful", "requireApproval: [shell], idempotent: true", &turns);
    let mut dev = Dev::start(&folder);
    let paused = json(&dev, 3, &["run", "agent/careful", "go", "--session", "s"]);
    dev.kill();
    let mut dev = Dev::start(&folder);
    let same = json(&dev, 3, &["approve", id(&paused), "--call", calls(&paused)[0]]);
    assert_eq!(calls(&same), [calls(&paused)[1]], "it waits as before");
    let mut approve = dev.cadre(&["approve", id(&paused), "--detach"]).spawn().unwrap();
    assert!(approve.wait().unwrap().success());
    until("the second command begins", || (folder.ledger() == ["1", "2"]).then_some(()));
    dev.kill();
    std::fs::write(folder.beside("gate"), "").unwrap();
    let dev = Dev::start(&folder);
    let done = until("the run ends", || {
        let (out, _) = text(&dev.cadre(&["runs", "-o", "json"]).output().unwrap());
        let runs: Value = serde_json::from_str(&out).ok()?;
        (runs[0]["status"] == "COMPLETED").then_some(runs[0].clone())
    });
    assert_eq!(folder.ledger(), ["1", "2"], "each ran once: an approval is for one execution");
    assert_eq!(id(&done), id(&paused));
}

#[test]
fn the_user_gives_values_and_results_where_the_agent_says_so() {
    let folder = Folder::new();
    let ask = "- tools: [{name: shell, arguments: {}}]\n- \"Done: {{last_result}}\"";
    agent(&folder, "asks", "requireUserInput: [command]", ask);
    let external = "- tools: [{name: shell, arguments: {command: \"deploy\"}}]\n- \"Done: {{last_result}}\"";
    agent(&folder, "hands", "externalExecution: ['*']", external);
    let dev = Dev::start(&folder);
    let paused = json(&dev, 3, &["run", "agent/asks", "go"]);
    assert_eq!(paused["requirements"][0]["user_input_schema"][0]["name"], "command");
    let (_, missing) = cadre(&dev, 1, &["approve", id(&paused)]);
    assert!(missing.contains("--set command=VALUE"), "{missing}");
    let done = json(&dev, 0, &["approve", id(&paused), "--set", "command=echo mine"]);
    assert!(done["content"].as_str().unwrap().contains("mine"), "{done}");
    assert_eq!(done["tools"][0]["tool_args"]["command"], "echo mine");

    let paused = json(&dev, 3, &["run", "agent/hands", "go"]);
    let done = json(&dev, 0, &["approve", id(&paused), "--result", "deployed by hand"]);
    assert_eq!(done["content"], "Done: deployed by hand");
}
