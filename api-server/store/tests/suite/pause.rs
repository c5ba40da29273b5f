//! Runs that wait for a person.

use std::time::Duration;

use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::{ComponentRef, RunId};
use cadre_protocol::journal::{Entry, Record};
use cadre_protocol::message::Role;
use cadre_protocol::requirement::{RunRequirement, Verdict, arguments_sha256};
use cadre_protocol::run::RunStatus;
use cadre_protocol::tool::ToolExecution;
use cadre_store::Store;
use cadre_store::approvals::{ApprovalRow, Consumption, DecideOutcome, Decisions};
use cadre_store::branches::{KeyOf, Keyed};
use cadre_store::rows::upkeep::OldRun;
use cadre_store::rows::{CancelOutcome, EndedRun, IdempotencyKey, Lease, NewRun, Origin};
use cadre_store::shares::{Shares, SlotLimits};
use cadre_store::workers::ReplicaId;
use serde_json::{Map, Value};

use super::Database;
use super::fixtures::*;

fn arguments(command: &str) -> Map<String, Value> {
    Map::from_iter([("command".to_owned(), Value::from(command))])
}

fn requirement(call_id: &str) -> RunRequirement {
    let tool = ToolExecution {
        tool_call_id: call_id.into(),
        tool_name: "shell".into(),
        tool_args: arguments(call_id),
        requires_confirmation: Some(true),
        ..ToolExecution::default()
    };
    RunRequirement::new(tool, now())
}

fn pauses(calls: &[&str]) -> Entry {
    let requirements: Vec<_> = calls.iter().map(|call| requirement(call)).collect();
    let event = RunEvent::paused("May I?".into(), requirements.clone());
    let record = Record::Paused { content: "May I?".into(), requirements };
    Entry { at_ms: now(), event: Some(event), record: Some(record) }
}

async fn pause(store: &dyn Store, session: &str, run_id: &RunId, lease: &Lease, calls: &[&str]) -> EndedRun {
    let entries = vec![message(Role::User, "q"), message(Role::Assistant, "May I?"), pauses(calls)];
    appended(append(store, session, run_id, lease.epoch, 0, entries).await).2.unwrap()
}

/// A run that waits for these calls: three entries.
async fn paused(store: &dyn Store, session: &str, calls: &[&str]) -> (RunId, Lease) {
    let (run_id, lease) = running(store, session).await;
    pause(store, session, &run_id, &lease, calls).await;
    (run_id, lease)
}

fn answer(row: &ApprovalRow, yes: bool) -> (u64, RunRequirement) {
    let mut requirement = row.requirement.clone();
    requirement.tool_execution.confirmed = Some(yes);
    requirement.confirmation = Some(yes);
    (row.version, requirement)
}

async fn decide(store: &dyn Store, run_id: &RunId, changes: Vec<(u64, RunRequirement)>) -> DecideOutcome {
    let decisions = Decisions { run_id: run_id.clone(), changes, decided_by: principal(), key: None, at_ms: now() };
    store.decide(decisions).await.unwrap()
}

async fn approve_all(store: &dyn Store, run_id: &RunId) -> DecideOutcome {
    let rows = store.approvals(run_id).await.unwrap();
    decide(store, run_id, rows.iter().filter(|row| row.is_open).map(|row| answer(row, true)).collect()).await
}

pub async fn a_paused_run_holds_its_line_and_no_slot(database: &impl Database) {
    let store = database.open();
    let narrow = || {
        let mut agent = agent("helper");
        agent.max_concurrent_sessions = Some(1);
        agent
    };
    let component = ComponentRef::agent("default", "helper");
    let first = accepted(&*store, new_run_of("s", narrow())).await.0.run_id;
    let other = accepted(&*store, new_run_of("t", narrow())).await.0.run_id;
    assert_eq!(store.grant(Some(&component), SlotLimits::default()).await.unwrap().len(), 1);
    let lease = lease(&*store, "s", "w").await;
    store.start(&first, &lease, now()).await.unwrap().unwrap();
    let behind = accept(&*store, "s").await;
    let ended = pause(&*store, "s", &first, &lease, &["a"]).await;
    assert_eq!((ended.status, ended.next), (RunStatus::Paused, None));
    let row = store.run(&first).await.unwrap().unwrap();
    assert_eq!((row.status, row.finished_at_ms, row.content), (RunStatus::Paused, None, Some("May I?".into())));
    assert_eq!(store.waiting_on(&behind).await.unwrap(), Some(first.clone()));
    assert!(store.start(&behind, &lease, now()).await.unwrap().is_none(), "the line stands still");
    assert!(store.start(&first, &lease, now()).await.unwrap().is_none(), "nothing was decided");
    assert!(store.waiting(10).await.unwrap().is_empty());
    let granted = store.grant(Some(&component), SlotLimits::default()).await.unwrap();
    assert_eq!(granted[0].run_id, other, "another session has the slot now");
    assert_eq!(store.stats().await.unwrap().paused, 1);
    approve_all(&*store, &first).await;
    assert!(store.waiting_run(&first).await.unwrap().is_none(), "it waits for a slot again");
    let (replica, long) = (ReplicaId::generate(), Duration::from_secs(15));
    assert!(!store.retire(&session("s"), &replica, long).await.unwrap(), "it is about to need its worker");
    store.cancel(&other, None, "", now()).await.unwrap();
    assert_eq!(store.grant(Some(&component), SlotLimits::default()).await.unwrap()[0].run_id, first);
}

pub async fn a_paused_run_leaves_the_slot_of_its_namespace(database: &impl Database) {
    let store = database.open();
    let limits = SlotLimits { of_all: 0, of_namespace: 1 };
    let shares = Shares { max_running: 1, ..Shares::default() };
    let of = |session: &str| NewRun { shares, ..new_run(session) };
    let first = accepted(&*store, of("s")).await.0.run_id;
    let other = accepted(&*store, of("t")).await.0.run_id;
    let granted = store.grant(None, limits).await.unwrap();
    assert_eq!((granted.len(), &granted[0].run_id), (1, &first), "there is one slot");
    let lease = lease(&*store, "s", "w").await;
    store.start(&first, &lease, now()).await.unwrap().unwrap();
    pause(&*store, "s", &first, &lease, &["a"]).await;
    assert_eq!(store.grant(None, limits).await.unwrap()[0].run_id, other);
    approve_all(&*store, &first).await;
    assert!(store.needs_slot(&first).await.unwrap() && store.grant(None, limits).await.unwrap().is_empty());
    store.cancel(&other, None, "", now()).await.unwrap();
    assert_eq!(store.grant(None, limits).await.unwrap()[0].run_id, first);
}

pub async fn a_key_decides_once(database: &impl Database) {
    let store = database.open();
    let (run_id, _) = paused(&*store, "s", &["a", "b"]).await;
    let row = store.run(&run_id).await.unwrap().unwrap();
    let key = KeyOf {
        key: IdempotencyKey { key: "k".into(), body_sha256: "of the answer".into() },
        principal: row.principal,
        user_id: row.user_id,
        component: row.component,
        origin: Origin::Http,
    };
    let decide = async |at: usize| {
        let changes = vec![answer(&store.approvals(&run_id).await.unwrap()[at], true)];
        let key = Some(key.clone());
        let wanted = Decisions { run_id: run_id.clone(), changes, decided_by: principal(), key, at_ms: now() };
        store.decide(wanted).await.unwrap()
    };
    assert!(store.keyed(key.clone()).await.unwrap().is_none());
    assert!(matches!(decide(0).await, DecideOutcome::StillPaused { .. }));
    let named = store.keyed(key.clone()).await.unwrap();
    assert!(matches!(named, Some(Keyed::Run(run)) if run.run_id == run_id), "also while calls are open");
    assert!(matches!(decide(1).await, DecideOutcome::Changed));
    assert!(store.approvals(&run_id).await.unwrap()[1].is_open, "nothing was written");
}

pub async fn decisions_are_merged_and_the_run_goes_on_when_all_are_there(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = paused(&*store, "s", &["a", "b"]).await;
    let rows = store.approvals(&run_id).await.unwrap();
    assert!(rows.iter().all(|row| row.is_open && row.position == 2 && row.decided_by.is_none()));
    let outcome = decide(&*store, &run_id, vec![answer(&rows[0], true)]).await;
    let DecideOutcome::StillPaused { run, chunk } = outcome else { panic!("{outcome:?}") };
    assert_eq!((run.status, run.next_index, chunk.first_index), (RunStatus::Paused, 4, 3));
    assert!(chunk.frames.starts_with("id: 3\nevent: RunPaused\n") && chunk.frames.contains(r#""tool_call_id":"b""#));
    assert!(!chunk.frames.contains(r#""tool_call_id":"a""#), "what is decided is not offered again");
    let again = decide(&*store, &run_id, vec![answer(&rows[0], false)]).await;
    assert!(matches!(again, DecideOutcome::Changed), "a decision stands");
    let rows = store.approvals(&run_id).await.unwrap();
    assert_eq!((rows[0].is_open, rows[0].decided_by.as_deref()), (false, Some("key:test")));

    let (one, two) = tokio::join!(
        decide(&*store, &run_id, vec![answer(&rows[1], false)]),
        decide(&*store, &run_id, vec![answer(&rows[1], true)])
    );
    let (is_first, outcome) = match (one, two) {
        (DecideOutcome::Changed, other) => (false, other),
        (other, DecideOutcome::Changed) => (true, other),
        both => panic!("two at once: {both:?}"),
    };
    let DecideOutcome::GoesOn { run } = outcome else { panic!("{outcome:?}") };
    assert_eq!((run.status, run.content, run.started_at_ms.is_some()), (RunStatus::Pending, None, true));
    assert_eq!(store.waiting_run(&run_id).await.unwrap().unwrap().run_id, run_id);
    let started = store.start(&run_id, &lease, now()).await.unwrap().unwrap();
    assert!(started.first && started.epoch > lease.epoch, "the pause was the last thing of its epoch");
    assert_eq!((started.run.attempt, started.progress.next_index), (2, 4));
    let decided: Vec<_> = started.progress.decisions.iter().map(|it| (it.verdict, &*it.tool.tool_call_id)).collect();
    let second = if is_first { Verdict::Rejected } else { Verdict::Approved };
    assert_eq!(decided, [(Verdict::Approved, "a"), (second, "b")]);
    assert_eq!(started.progress.decisions[0].arguments_sha256, arguments_sha256(&arguments("a")));
    complete(&*store, "s", &run_id, started.epoch, 4).await;
    assert!(matches!(decide(&*store, &run_id, vec![answer(&rows[1], true)]).await, DecideOutcome::Changed));
}

pub async fn the_time_of_a_pause_does_not_count(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = paused(&*store, "s", &["a"]).await;
    let before = store.run(&run_id).await.unwrap().unwrap();
    let rows = store.approvals(&run_id).await.unwrap();
    let at_ms = now() + 3_600_000;
    let changes = vec![answer(&rows[0], true)];
    store
        .decide(Decisions { run_id: run_id.clone(), changes, decided_by: principal(), key: None, at_ms })
        .await
        .unwrap();
    let started = store.start(&run_id, &lease, at_ms).await.unwrap().unwrap();
    assert_eq!(started.run.started_at_ms, before.started_at_ms);
    let paused_ms = started.run.paused_ms;
    assert!((3_600_000..3_700_000).contains(&paused_ms), "{paused_ms}");
    append(&*store, "s", &run_id, started.epoch, 3, vec![pauses(&["b"])]).await;
    approve_all(&*store, &run_id).await;
    let row = store.run(&run_id).await.unwrap().unwrap();
    assert!(row.paused_ms >= paused_ms, "pauses add up");
}

pub async fn an_approval_is_spent_once_and_only_on_its_call(database: &impl Database) {
    let store = database.open();
    let (run_id, _) = paused(&*store, "s", &["a", "b", "c"]).await;
    let wanted = |call_id: &str, tool: &str, command: &str| Consumption {
        run_id: run_id.clone(),
        call_id: call_id.into(),
        tool_name: tool.into(),
        arguments_sha256: arguments_sha256(&arguments(command)),
        at_ms: now(),
    };
    assert!(!store.consume(wanted("a", "shell", "a")).await.unwrap(), "nobody has said yes");
    let rows = store.approvals(&run_id).await.unwrap();
    decide(&*store, &run_id, vec![answer(&rows[0], true), answer(&rows[1], false)]).await;
    for (call_id, tool, command) in
        [("a", "shell", "b"), ("a", "http", "a"), ("none", "shell", "a"), ("b", "shell", "b"), ("c", "shell", "c")]
    {
        assert!(!store.consume(wanted(call_id, tool, command)).await.unwrap(), "{call_id} {tool} {command}");
    }
    let foreign = Consumption { run_id: RunId::generate(), ..wanted("a", "shell", "a") };
    assert!(!store.consume(foreign).await.unwrap());
    let tries = (0..8).map(|_| store.consume(wanted("a", "shell", "a")));
    let mut spent = 0;
    for outcome in futures::future::join_all(tries).await {
        spent += u32::from(outcome.unwrap());
    }
    assert_eq!(spent, 1);
}

pub async fn a_paused_session_may_lose_its_worker(database: &impl Database) {
    let store = database.open();
    let (run_id, old) = paused(&*store, "s", &["a"]).await;
    accept(&*store, "s").await;
    let (replica, long) = (ReplicaId::generate(), Duration::from_secs(15));
    assert!(store.retire(&session("s"), &replica, long).await.unwrap(), "the run behind can't start either");
    approve_all(&*store, &run_id).await;
    assert!(store.start(&run_id, &old, now()).await.unwrap().is_none());
    let new = lease(&*store, "s", "other").await;
    assert!(store.start(&run_id, &new, now()).await.unwrap().is_some());
}

pub async fn a_cancel_that_meets_the_pause_ends_the_run(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    let behind = accept(&*store, "s").await;
    store.cancel(&run_id, None, "stop", now()).await.unwrap();
    let ended = pause(&*store, "s", &run_id, &held, &["a"]).await;
    assert_eq!((ended.status, ended.next), (RunStatus::Cancelled, Some(behind)));
    assert!(frames(&*store, &run_id).await.contains("event: RunCancelled"));
}

pub async fn a_paused_run_is_cancelled_in_its_stage(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = paused(&*store, "s", &["a"]).await;
    let behind = accept(&*store, "s").await;
    let rows = store.approvals(&run_id).await.unwrap();
    let outcome = store.cancel(&run_id, None, "stop", now()).await.unwrap();
    let CancelOutcome::Ended { chunk: Some(chunk), next } = outcome else { panic!("{outcome:?}") };
    assert_eq!((chunk.first_index, next), (3, Some(behind.clone())));
    let row = store.run(&run_id).await.unwrap().unwrap();
    assert_eq!((row.status, row.cancellation_stage.as_deref()), (RunStatus::Cancelled, Some("PAUSED")));
    assert!(matches!(decide(&*store, &run_id, vec![answer(&rows[0], true)]).await, DecideOutcome::Changed));
    assert!(store.start(&behind, &held, now()).await.unwrap().is_some(), "the worker has kept its lease");
}

pub async fn a_paused_run_is_never_old(database: &impl Database) {
    let store = database.open();
    let (run_id, _) = paused(&*store, "s", &["a"]).await;
    let old = OldRun { run_id: run_id.clone(), session_id: session("s") };
    let later = now() + 1_000_000;
    assert!(store.old_runs(later, 10).await.unwrap().is_empty());
    assert!(!store.delete_run(&old, later).await.unwrap());
    assert!(store.delete(&[session("s")], None).await.unwrap().is_empty(), "nor does its session go");
    store.cancel(&run_id, None, "", now()).await.unwrap();
    assert!(store.delete_run(&old, now() + 1_000_000).await.unwrap());
    assert!(store.approvals(&run_id).await.unwrap().is_empty());
    let (run_id, _) = paused(&*store, "t", &["a"]).await;
    store.cancel(&run_id, None, "", now()).await.unwrap();
    assert_eq!(store.delete(&[session("t")], None).await.unwrap(), [session("t")]);
    assert!(store.approvals(&run_id).await.unwrap().is_empty());
}

pub async fn a_paused_run_takes_nothing_from_its_last_writer(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let entries = vec![message(Role::User, "q"), pauses(&["a"])];
    append(&*store, "s", &run_id, lease.epoch, 0, entries.clone()).await;
    let again = append(&*store, "s", &run_id, lease.epoch, 0, entries).await;
    assert_eq!(appended(again), (2, None, None), "the batch is there already");
    let more = append(&*store, "s", &run_id, lease.epoch, 2, vec![text("x")]).await;
    assert_eq!(more, cadre_store::rows::AppendOutcome::Fenced);
    let late = append(&*store, "s", &run_id, lease.epoch, 0, vec![pauses(&["a"]), text("x")]).await;
    assert!(matches!(late, cadre_store::rows::AppendOutcome::LimitExceeded(_)), "{late:?}");
}
