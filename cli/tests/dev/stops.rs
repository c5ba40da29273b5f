//! Servers that are stopped, or that should not be there twice, and what deleted sessions leave.

use std::process::Command;

use crate::support::{Dev, Folder, signal, text, until};

/// A message that has these commands carried out.
fn script(commands: &[&str]) -> String {
    let call = |command: &&str| format!("- tools: [{{name: shell, arguments: {{command: \"{command}\"}}}}]\n");
    format!("```script\n{}- \"{{{{last_result}}}}\"\n```", commands.iter().map(call).collect::<String>())
}

#[test]
fn a_second_server_on_the_same_data_is_refused() {
    let folder = Folder::new().with_gate();
    let first = Dev::start(&folder);
    let second = Command::new(env!("CARGO_BIN_EXE_cadre"))
        .arg("dev")
        .arg(folder.manifests())
        .args(["--listen", "127.0.0.1:0"])
        .env_remove("OS_SECURITY_KEY")
        .output()
        .unwrap();
    let (_, notes) = text(&second);
    assert!(!second.status.success() && notes.contains("is in use by another cadre dev"), "{notes}");
    assert!(first.http("GET /health HTTP/1.1\r\nHost: localhost").starts_with("HTTP/1.1 200"));
}

#[test]
fn what_a_tool_has_done_before_the_stop_is_recorded() {
    let folder = Folder::new().with_gate();
    let dev = Dev::start(&folder);
    // The signal comes while the command runs, which ends soon after.
    let command = format!("touch {}; sleep 1; echo it is done", folder.beside("begun").display());
    let started = dev.cadre(&["run", "agent/worker", &script(&[&command]), "--detach"]).output().unwrap();
    assert!(started.status.success(), "{:?}", text(&started));
    until("the command runs", || folder.beside("begun").exists().then_some(()));
    drop(dev);
    let dev = Dev::start(&folder);
    let (runs, _) = text(&dev.cadre(&["runs", "-o", "json"]).output().unwrap());
    let runs: serde_json::Value = serde_json::from_str(&runs).unwrap();
    let run = runs["data"][0]["run_id"].as_str().or(runs[0]["run_id"].as_str()).unwrap().to_owned();
    let (events, notes) = text(&dev.cadre(&["logs", &run, "-f"]).output().unwrap());
    assert!(events.contains("it is done"), "{events}\n{notes}");
    assert!(!notes.contains("unknown") && !events.contains("unknown"), "{events}\n{notes}");
}

#[test]
fn a_deleted_session_leaves_no_file_to_the_next_one_of_its_id() {
    let folder = Folder::new().with_gate();
    let dev = Dev::start(&folder);
    let ask = |command: &str| {
        let output = dev.cadre(&["run", "agent/worker", &script(&[command]), "--session", "s"]).output().unwrap();
        text(&output).0
    };
    assert!(ask("echo secret > notes; cat notes").contains("secret"));
    assert!(ask("cat notes").contains("secret"), "the session has its files");
    let deleted = dev.http("DELETE /sessions/s HTTP/1.1\r\nHost: localhost");
    assert!(deleted.starts_with("HTTP/1.1 204"), "{deleted}");
    assert_eq!(folder.in_workspaces("notes"), Vec::<std::path::PathBuf>::new());
    let answer = ask("cat notes || echo nothing here");
    assert!(answer.contains("nothing here") && !answer.contains("secret"), "{answer}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = Folder::new().with_gate();
    let dev = Dev::start(&folder);
    let run = dev.cadre(&["run", "agent/worker", "go", "--detach"]).output().unwrap();
    assert!(run.status.success());
    until("the third command runs", || folder.ledger().contains(&"3".to_owned()).then_some(()));
    signal(dev.pid(), "TERM");
    signal(dev.pid(), "TERM");
    let gone = || !std::path::Path::new(&format!("/proc/{}/cmdline", dev.pid())).exists();
    until("it has ended", || (gone() || is_zombie(dev.pid())).then_some(()));
}

fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}
