//! Starts, and what a worker is told.

use cadre_protocol::journal::Record;
use cadre_protocol::message::Role;
use cadre_protocol::run::{RunEnd, RunFailure, RunStatus};
use cadre_protocol::tool::{ToolExecution, WorkspaceEffect};

use super::Database;
use super::fixtures::*;

pub async fn two_leases_claim_one_head(database: &impl Database) {
    let store = database.open();
    let run_id = accept(&*store, "s").await;
    let old = lease(&*store, "s", "a").await;
    let new = lease(&*store, "s", "b").await;
    let (of_old, of_new) = tokio::join!(store.start(&run_id, &old, now()), store.start(&run_id, &new, now()));
    assert!(of_old.unwrap().is_none());
    assert_eq!(of_new.unwrap().unwrap().epoch, new.epoch);
}

pub async fn a_second_start_under_one_lease_is_the_same_attempt(database: &impl Database) {
    let store = database.open();
    let run_id = accept(&*store, "s").await;
    let lease = lease(&*store, "s", "a").await;
    let (one, two) = tokio::join!(store.start(&run_id, &lease, now()), store.start(&run_id, &lease, now()));
    let (one, two) = (one.unwrap().unwrap(), two.unwrap().unwrap());
    assert!(one.first != two.first, "one of them began it");
    assert_eq!((one.run.attempt, two.run.attempt), (1, 1));
    assert_eq!(one.run.started_at_ms, two.run.started_at_ms);
}

pub async fn a_lost_worker_is_followed_with_the_progress(database: &impl Database) {
    let store = database.open();
    let (run_id, old) = running(&*store, "s").await;
    let tool = ToolExecution { tool_call_id: "c1".into(), tool_name: "shell".into(), ..ToolExecution::default() };
    let entries = vec![
        message(Role::User, "q"),
        message(Role::Assistant, "calling"),
        record(Record::ToolStarted { tool: tool.clone(), idempotent: true }),
    ];
    append(&*store, "s", &run_id, old.epoch, 0, entries).await;
    store.model_call(model_call(&run_id, now(), None)).await.unwrap();
    store.release(&session("s"), &old).await.unwrap();
    let new = lease(&*store, "s", "b").await;
    let started = store.start(&run_id, &new, now()).await.unwrap().unwrap();
    assert_eq!((started.run.attempt, started.epoch, started.first), (2, new.epoch, true));
    let progress = started.progress;
    assert_eq!((progress.next_index, progress.messages.len(), progress.model_calls), (3, 2, 1));
    assert_eq!(progress.tool_calls.len(), 1);
    assert_eq!((&progress.tool_calls[0].tool, progress.tool_calls[0].finished), (&tool, false));
    assert!(progress.tool_calls[0].idempotent);
}

pub async fn history_is_the_newest_completed_runs(database: &impl Database) {
    let store = database.open();
    for number in 0..5 {
        let (run_id, lease) = running(&*store, "s").await;
        let mut entries = vec![message(Role::System, "rules"), message(Role::User, &format!("q{number}"))];
        if number == 3 {
            let failure = RunFailure { error_type: "x".into(), error_id: None, message: "m".into(), retryable: false };
            entries.push(record(Record::Finished(RunEnd::Error(failure))));
        } else {
            entries.push(message(Role::Assistant, &format!("a{number}")));
            entries.push(completed("a"));
        }
        appended(append(&*store, "s", &run_id, lease.epoch, 0, entries).await);
    }
    turn(&*store, "another").await;
    let run_id = accept(&*store, "s").await;
    let started = store.start(&run_id, &lease(&*store, "s", "w").await, now()).await.unwrap().unwrap();
    let texts: Vec<&str> = started.history.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(texts, ["q1", "a1", "q2", "a2", "q4", "a4"], "three runs that completed, without system messages");
    let mut forgetful = agent("helper");
    forgetful.history.runs = 0;
    store.cancel(&run_id, None, "", now()).await.unwrap();
    complete(&*store, "s", &run_id, started.epoch, 0).await;
    let (row, ..) = accepted(&*store, new_run_of("s", forgetful)).await;
    let started = store.start(&row.run_id, &lease(&*store, "s", "w").await, now()).await.unwrap().unwrap();
    assert!(started.history.is_empty());
    assert_eq!(started.run.status, RunStatus::Running);
}

pub async fn effects_come_from_all_runs_of_the_session(database: &impl Database) {
    let store = database.open();
    for number in 0..2 {
        let (run_id, lease) = running(&*store, "s").await;
        let call = |id: &str| ToolExecution {
            tool_call_id: id.into(),
            tool_name: "write_file".into(),
            ..ToolExecution::default()
        };
        let effect =
            |file: &str| Some(WorkspaceEffect { workspace_id: "w".into(), files: vec![file.into()], truncated: false });
        let finished =
            |id: &str, effect| record(Record::ToolFinished { tool: call(id), effect, unknown_outcome: false });
        let entries = vec![
            record(Record::ToolStarted { tool: call("c1"), idempotent: false }),
            record(Record::ToolStarted { tool: call("c2"), idempotent: false }),
            finished("c2", effect(&format!("{number}-first"))),
            finished("c1", effect(&format!("{number}-second"))),
            finished("c3", None),
            completed("done"),
        ];
        appended(append(&*store, "s", &run_id, lease.epoch, 0, entries).await);
    }
    let run_id = accept(&*store, "s").await;
    let started = store.start(&run_id, &lease(&*store, "s", "w").await, now()).await.unwrap().unwrap();
    let files: Vec<&str> = started.effects.iter().map(|effect| effect.effect.files[0].as_str()).collect();
    assert_eq!(files, ["0-first", "0-second", "1-first", "1-second"]);
    assert_eq!((started.effects[0].tool_call_id.as_str(), started.effects[0].tool_name.as_str()), ("c2", "write_file"));
}
