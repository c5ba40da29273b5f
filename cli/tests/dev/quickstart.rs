//! The way of a newcomer: serve the folder, run the run, read the report.

use std::io::Read as _;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Dev, Folder, below, text, until};

fn path(folder: &Folder, name: &str) -> String {
    folder.manifests().join(name).display().to_string()
}

#[test]
fn the_quickstart_answers_with_real_numbers() {
    let folder = Folder::quickstart();
    let dev = Dev::start(&folder);
    assert!(dev.said("analyst  ready, model scripted-analyst (Scripted)"));
    assert!(dev.said("30-run.yaml --server"));
    assert!(dev.said("This is no sandbox"));
    let output = dev.cadre(&["run", "-f", &path(&folder, "30-run.yaml")]).output().unwrap();
    let (answer, notes) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{answer}\n{notes}");
    // 1200.50 + 8450.00 + 3020.75 + 402.30 + 1499.99
    assert!(answer.contains("14573.54"), "{answer}");
    assert!(answer.starts_with("I look at the file first.\n"), "{answer}");
    assert!(notes.contains("→ shell command=wc -l uploads/sales.csv"), "{notes}");
    assert!(notes.contains("✓ write_file") && notes.contains("✓ completed · "), "{notes}");
    let [report] = folder.in_workspaces("report.md").try_into().unwrap();
    assert!(std::fs::read_to_string(report).unwrap().contains("14573.54"));
}

#[test]
fn runs_are_made_listed_shown_and_continued() {
    let folder = Folder::new();
    folder.write("echo.yaml", ECHO);
    std::fs::write(folder.beside("notes.txt"), "note").unwrap();
    let dev = Dev::start(&folder);
    let notes = folder.beside("notes.txt").display().to_string();
    let detached = dev
        .cadre(&[
            "run",
            "agent/echo",
            "first\u{1b}[2J",
            "--detach",
            "--session",
            "s 1",
            "--user",
            "ada",
            "--file",
            &notes,
        ])
        .output()
        .unwrap();
    let (run_id, problem) = text(&detached);
    assert_eq!(detached.status.code(), Some(0), "{problem}");
    let run_id = run_id.trim();

    let (log, _) = text(&dev.cadre(&["logs", run_id, "-f"]).output().unwrap());
    assert!(log.starts_with("You said: first[2J\n") && log.contains("notes.txt"), "{log}");
    let (events, _) = text(&dev.cadre(&["logs", run_id, "-o", "ndjson"]).output().unwrap());
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (events[0]["event"].as_str(), events.last().unwrap()["event"].as_str()),
        (Some("RunStarted"), Some("RunCompleted"))
    );

    let json =
        dev.cadre(&["run", "agent/echo", "-", "--session", "s 1", "-o", "json"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(json.status.code(), Some(1), "an empty text is refused");
    assert!(text(&json).1.contains("(validation_error)"), "{}", text(&json).1);
    let json = dev.cadre(&["run", "agent/echo", "second", "--session", "s 1", "-o", "json"]).output().unwrap();
    let output: Value = serde_json::from_str(&text(&json).0).unwrap();
    assert_eq!((output["status"].as_str(), output["session_id"].as_str()), (Some("COMPLETED"), Some("s 1")));

    let (list, _) = text(&dev.cadre(&["runs", "--session", "s 1", "-o", "wide"]).output().unwrap());
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(lines[0].starts_with("RUN ") && lines[1].contains("second") && lines[2].contains(run_id), "{list}");
    assert!(lines[2].contains("ada"), "{list}");
    let (none, said) = text(&dev.cadre(&["runs", "-n", "elsewhere"]).output().unwrap());
    assert_eq!((none.as_str(), said.as_str()), ("", "No runs found in namespace elsewhere.\n"));
    let (late, _) = text(&dev.cadre(&["cancel", run_id]).output().unwrap());
    assert_eq!(late, format!("run {run_id}: had ended before: COMPLETED\n"));
    let (versions, _) = text(&dev.cadre(&["version"]).output().unwrap());
    assert!(versions.contains("client  ") && versions.contains("cadre-dev, 1 agents"), "{versions}");
}

#[test]
fn mistakes_are_answered_with_a_line_that_helps() {
    let folder = Folder::new();
    folder.write("echo.yaml", ECHO);
    let dev = Dev::start(&folder);
    for (args, wanted) in [
        (&["run", "agent/nobody", "hi", "-n", "team-a"][..], "kubectl get agents -n team-a"),
        (&["run", "agent/nobody", "hi"][..], "agent nobody not found (not_found)"),
        (&["logs", "no-such-run"][..], "run no-such-run not found (not_found)"),
        (&["cancel", "run/object"][..], "needs a cluster"),
        (&["run", "-f", "/no/such/file"][..], "/no/such/file: "),
    ] {
        let output = dev.cadre(args).output().unwrap();
        let (out, err) = text(&output);
        assert_eq!((output.status.code(), out.as_str()), (Some(1), ""), "{args:?}: {err}");
        assert!(err.starts_with("error: ") && err.contains(wanted), "{args:?}: {err}");
    }
    // A reader that goes away early is no reason to panic.
    let mut child = dev.cadre(&["run", "agent/echo", "hi"]).spawn().unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(141), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn pages_are_kept_out_and_keys_stay_in() {
    let folder = Folder::new().with_gate();
    let keys =
        [("OPENAI_API_KEY", "canary-openai"), ("ANTHROPIC_API_KEY", "canary-anthropic"), ("OTHER", "canary-other")];
    let dev = Dev::start_at(&folder, "127.0.0.1:0", &keys);
    let post = |more: &str| {
        let head =
            "POST /agents/worker/runs HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 0";
        dev.http(&format!("{head}\r\n{more}"))
    };
    let host = format!("Host: {}", dev.address());
    assert!(post(&format!("{host}\r\nOrigin: https://evil.example")).starts_with("HTTP/1.1 403 "));
    assert!(post(&format!("{host}\r\nSec-Fetch-Site: cross-site")).starts_with("HTTP/1.1 403 "));
    assert!(post("Host: evil.example").starts_with("HTTP/1.1 403 "));
    assert!(post(&host).starts_with("HTTP/1.1 422 "), "own programs get to the form's rules");

    let run = dev.cadre(&["run", "agent/worker", "go"]).spawn().unwrap();
    until("the third command runs", || folder.ledger().contains(&"3".to_owned()).then_some(()));
    let processes = below(dev.pid());
    for wanted in ["__worker", "__exec", "until ["] {
        assert!(processes.iter().any(|(_, line)| line.contains(wanted)), "{wanted}: {processes:?}");
    }
    for (pid, line) in &processes {
        // A process may have ended meanwhile; those named above have not.
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { continue };
        assert!(!String::from_utf8_lossy(&environment).contains("canary"), "{line}");
        assert!(!line.contains("canary"), "{line}");
    }
    folder.open_gate();
    assert_eq!(run.wait_with_output().unwrap().status.code(), Some(0));
}

const ECHO: &str = "apiVersion: cadre.dev/v1alpha1\nkind: Model\nmetadata: {name: echo}\nspec: {provider: Scripted, model: echo}\n---\n\
                    apiVersion: cadre.dev/v1alpha1\nkind: Agent\nmetadata: {name: echo}\nspec: {modelRef: {name: echo}, instructions: Echo.}\n";
