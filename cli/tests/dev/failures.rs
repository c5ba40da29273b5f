//! Workers and servers that are killed, and users who change their mind.

use serde_json::Value;

use crate::support::{Dev, Folder, below, lasting_port, signal, text, until};

fn at_the_gate(folder: &Folder) {
    until("the third command runs", || folder.ledger().contains(&"3".to_owned()).then_some(()));
}

fn once_each() -> Vec<String> {
    (1..=5).map(|n| n.to_string()).collect()
}

#[test]
fn a_run_survives_its_worker_and_repeats_nothing() {
    let folder = Folder::new().with_gate();
    let dev = Dev::start(&folder);
    let run = dev.cadre(&["run", "agent/worker", "go"]).spawn().unwrap();
    at_the_gate(&folder);
    let busy = below(dev.pid()).into_iter().find(|(pid, line)| line.contains("__worker") && !below(*pid).is_empty());
    signal(busy.unwrap().0, "KILL");
    let output = run.wait_with_output().unwrap();
    let (answer, notes) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{answer}\n{notes}");
    assert!(answer.ends_with("All five are done.\n"), "{answer}");
    assert!(notes.contains("the outcome of shell is unknown"), "{notes}");
    assert_eq!(folder.ledger(), once_each());
}

#[test]
fn a_client_follows_a_server_that_is_killed_and_comes_back() {
    let folder = Folder::new().with_gate();
    let address = format!("127.0.0.1:{}", lasting_port());
    let mut dev = Dev::start_at(&folder, &address, &[]);
    let run = dev.cadre(&["run", "agent/worker", "go", "-o", "ndjson"]).spawn().unwrap();
    at_the_gate(&folder);
    dev.kill();
    let _again = Dev::start_at(&folder, &address, &[]);
    let output = run.wait_with_output().unwrap();
    let (events, notes) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{events}\n{notes}");
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let indices: Vec<u64> = events.iter().map(|event| event["event_index"].as_u64().unwrap()).collect();
    assert!(indices.is_sorted_by(|a, b| a < b), "{indices:?}");
    let steps: String = events
        .iter()
        .filter(|event| event["event"] == "RunContent")
        .filter_map(|event| event["content"].as_str())
        .collect();
    assert_eq!(steps, "Step 1. Step 2. Step 3. Step 4. Step 5. All five are done.");
    assert_eq!(folder.ledger(), once_each());
}

#[test]
fn ctrl_c_cancels_the_run() {
    let folder = Folder::new().with_gate();
    let dev = Dev::start(&folder);
    let run = dev.cadre(&["run", "agent/worker", "go"]).spawn().unwrap();
    at_the_gate(&folder);
    signal(run.id(), "INT");
    let output = run.wait_with_output().unwrap();
    let (_, notes) = text(&output);
    assert_eq!(output.status.code(), Some(130), "{notes}");
    assert!(notes.contains("cancelling; Ctrl-C again leaves at once") && notes.contains("✗ cancelled"), "{notes}");
    let (list, _) = text(&dev.cadre(&["runs"]).output().unwrap());
    assert!(list.contains("CANCELLED"), "{list}");
    until("its command has ended", || below(dev.pid()).iter().all(|(_, line)| !line.contains("until [")).then_some(()));
}

#[test]
fn nothing_is_left_behind() {
    let folder = Folder::new().with_gate();
    let dev = Dev::start(&folder);
    let run = dev.cadre(&["run", "agent/worker", "go", "--detach"]).output().unwrap();
    assert_eq!(run.status.code(), Some(0));
    at_the_gate(&folder);
    let processes = below(dev.pid());
    assert!(processes.iter().any(|(_, line)| line.contains("__exec")));
    drop(dev);
    for (pid, line) in processes {
        let same = || {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|now| String::from_utf8_lossy(&now).replace('\0', " ") == line && !line.is_empty())
        };
        until(&format!("{line} has ended"), || (!same()).then_some(()));
    }
}
