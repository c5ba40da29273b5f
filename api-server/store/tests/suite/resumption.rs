//! Runs that failed and go on under their own id.

use std::sync::Arc;

use cadre_protocol::ids::RunId;
use cadre_protocol::journal::Record;
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::run::RunStatus;
use cadre_protocol::tool::ToolExecution;
use cadre_store::Store;
use cadre_store::branches::{ResumeOutcome, Resumption};
use cadre_store::rows::{AppendOutcome, RunRow};

use super::Database;
use super::fixtures::*;

pub fn resumption(run_id: &RunId, of: u64, input: Option<&str>) -> Resumption {
    let agent = agent("helper");
    Resumption {
        run_id: run_id.clone(),
        of,
        input: input.map(|text| Message::text(Role::User, text, now())),
        question: None,
        key: None,
        revision: agent.revision(),
        agent: Arc::new(agent),
        max_queue_depth: 0,
        shares: cadre_store::shares::Shares::default(),
        is_limited: false,
        at_ms: now(),
    }
}

/// Resumes a run that has this many messages.
pub async fn resumed(store: &dyn Store, run_id: &RunId, of: u64, input: Option<&str>) -> (RunRow, Option<RunId>) {
    match store.resume(resumption(run_id, of, input)).await.unwrap() {
        ResumeOutcome::Resumed { run, waiting_on } => (*run, waiting_on),
        other => panic!("not resumed: {other:?}"),
    }
}

pub async fn a_run_that_failed_goes_on_under_its_id(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    append(&*store, "s", &run_id, held.epoch, 0, vec![message(Role::User, "q"), text("t")]).await;
    store.model_call(model_call(&run_id, now(), None)).await.unwrap();
    fail(&*store, "s", &run_id, held.epoch, 2).await;
    let (row, waiting_on) = resumed(&*store, &run_id, 1, None).await;
    assert_eq!((row.status, row.next_index, waiting_on), (RunStatus::Pending, 3, None));
    assert!(row.failure.is_none() && row.finished_at_ms.is_none() && row.started_at_ms.is_none());
    assert_eq!(store.waiting(10).await.unwrap()[0].run_id, run_id, "it is looked after like any that waits");
    // The process that had it gets it again, under another epoch: its old leg's writes are over.
    let started = store.start(&run_id, &held, now()).await.unwrap().unwrap();
    assert_eq!((started.run.attempt, started.first), (2, true));
    assert!(started.epoch > held.epoch);
    assert_eq!((started.progress.next_index, started.progress.model_calls), (3, 0), "a limit counts anew");
    let late = append(&*store, "s", &run_id, held.epoch, 3, vec![text("late")]).await;
    assert_eq!(late, AppendOutcome::Fenced);
    let lease = store.lease(&session("s")).await.unwrap().unwrap();
    assert_eq!(lease.epoch, started.epoch);
    let again = store.start(&run_id, &lease, now()).await.unwrap().unwrap();
    assert_eq!((again.first, again.epoch), (false, started.epoch));
    appended(append(&*store, "s", &run_id, started.epoch, 3, vec![text("on"), completed("done")]).await);
    let ids: Vec<String> = frames(&*store, &run_id)
        .await
        .lines()
        .filter_map(|line| line.strip_prefix("id: ").map(str::to_owned))
        .collect();
    assert_eq!(ids, ["1", "2", "3", "4"]);
    let row = store.run(&run_id).await.unwrap().unwrap();
    assert_eq!((row.status, row.metrics.model_calls), (RunStatus::Completed, 1), "and all legs are summed up");
}

pub async fn a_resumed_run_waits_behind_the_line(database: &impl Database) {
    let store = database.open();
    turn(&*store, "s").await;
    let (run_id, held) = running(&*store, "s").await;
    append(&*store, "s", &run_id, held.epoch, 0, vec![message(Role::User, "mine")]).await;
    fail(&*store, "s", &run_id, held.epoch, 1).await;
    let (next, lease) = running(&*store, "s").await;
    let (_, waiting_on) = resumed(&*store, &run_id, 1, None).await;
    assert_eq!(waiting_on.as_ref(), Some(&next));
    assert!(store.start(&run_id, &lease, now()).await.unwrap().is_none(), "one turn at a time");
    let ended = complete(&*store, "s", &next, lease.epoch, 0).await;
    assert_eq!(ended.next.as_ref(), Some(&run_id));
    let started = store.start(&run_id, &lease, now()).await.unwrap().unwrap();
    assert_eq!(said(&started.history), ["q", "a"], "its own history, without what came meanwhile");
}

pub async fn stand_ins_are_forgotten(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    let call = |id: &str| ToolCall { id: id.into(), name: "shell".into(), arguments: "{}".into() };
    let tool = |id: &str| ToolExecution { tool_call_id: id.into(), ..ToolExecution::default() };
    let result = |id: &str| Message::tool_result(&call(id), "r", false, now());
    let stand_in = |id: &str| record(Record::Message(Message { stand_in: true, ..result(id) }));
    let finished = |id: &str, unknown_outcome| {
        let tool = ToolExecution { result: Some("stopped".into()), ..tool(id) };
        record(Record::ToolFinished { tool, effect: None, unknown_outcome })
    };
    let started = |id: &str| record(Record::ToolStarted { tool: tool(id), idempotent: true });
    let calls = ["done", "cut", "announced", "silent"].map(call).to_vec();
    let entries = vec![
        message(Role::User, "q"),
        record(Record::Message(Message { tool_calls: calls, ..Message::text(Role::Assistant, "calls", now()) })),
        started("done"),
        finished("done", false),
        record(Record::Message(result("done"))),
        started("cut"),
        finished("cut", true),
        stand_in("cut"),
        finished("announced", false),
        stand_in("announced"),
        stand_in("silent"),
    ];
    append(&*store, "s", &run_id, held.epoch, 0, entries).await;
    fail(&*store, "s", &run_id, held.epoch, 11).await;
    assert_eq!(store.detail(&run_id, None).await.unwrap().unwrap().messages.len(), 6, "until then there is no gap");
    resumed(&*store, &run_id, 6, None).await;
    let progress = store.start(&run_id, &held, now()).await.unwrap().unwrap().progress;
    assert_eq!(said(&progress.messages), ["q", "calls", "r"]);
    let states: Vec<_> = progress
        .tool_calls
        .iter()
        .map(|state| (state.tool.tool_call_id.as_str(), state.finished, state.idempotent))
        .collect();
    assert_eq!(states, [("done", true, true), ("cut", false, true)]);
}

pub async fn input_comes_before_what_follows(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    append(&*store, "s", &run_id, held.epoch, 0, vec![message(Role::User, "q")]).await;
    fail(&*store, "s", &run_id, held.epoch, 1).await;
    let (row, _) = resumed(&*store, &run_id, 1, Some("with care")).await;
    assert_eq!(row.next_index, 3);
    let started = store.start(&run_id, &held, now()).await.unwrap().unwrap();
    assert_eq!(said(&started.progress.messages), ["q", "with care"]);
    let entries = vec![message(Role::Assistant, "a"), completed("a")];
    appended(append(&*store, "s", &run_id, started.epoch, 3, entries).await);
    assert_eq!(said(&store.detail(&run_id, None).await.unwrap().unwrap().messages), ["q", "with care", "a"]);
}

pub async fn only_failed_runs_that_are_as_they_were_go_on(database: &impl Database) {
    let store = database.open();
    let completed = turn(&*store, "s").await;
    let (open, held) = running(&*store, "t").await;
    for (run_id, of) in [(&completed, 2), (&open, 0), (&RunId::generate(), 0)] {
        let outcome = store.resume(resumption(run_id, of, None)).await.unwrap();
        assert!(matches!(outcome, ResumeOutcome::Changed), "{outcome:?}");
    }
    fail(&*store, "t", &open, held.epoch, 0).await;
    let outcome = store.resume(resumption(&open, 1, None)).await.unwrap();
    assert!(matches!(outcome, ResumeOutcome::Changed), "{outcome:?}");
    accept(&*store, "u").await;
    let full = Resumption { max_queue_depth: 1, ..resumption(&open, 0, None) };
    assert!(matches!(store.resume(full).await.unwrap(), ResumeOutcome::QueueFull));
    assert_eq!(store.run(&open).await.unwrap().unwrap().status, RunStatus::Error);
    let (one, two) = tokio::join!(store.resume(resumption(&open, 0, None)), store.resume(resumption(&open, 0, None)));
    let resumed = [one.unwrap(), two.unwrap()].iter().filter(|it| matches!(it, ResumeOutcome::Resumed { .. })).count();
    assert_eq!(resumed, 1, "two at once resume it once");
}

pub async fn attempts_after_failures_are_counted(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    let retry = || record(Record::Retry {});
    append(&*store, "s", &run_id, held.epoch, 0, vec![message(Role::User, "q"), retry(), retry()]).await;
    assert_eq!(store.run(&run_id).await.unwrap().unwrap().attempt, 3);
    let other = lease(&*store, "s", "b").await;
    let started = store.start(&run_id, &other, now()).await.unwrap().unwrap();
    assert_eq!((started.run.attempt, started.progress.retries), (4, 2));
    fail(&*store, "s", &run_id, other.epoch, 3).await;
    resumed(&*store, &run_id, 1, None).await;
    let started = store.start(&run_id, &other, now()).await.unwrap().unwrap();
    assert_eq!((started.run.attempt, started.progress.retries), (5, 0));
}
