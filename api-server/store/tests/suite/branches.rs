//! Forks of runs and copies of sessions.

use cadre_protocol::ids::RunId;
use cadre_protocol::journal::Record;
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::run::RunStatus;
use cadre_protocol::tool::{ToolExecution, WorkspaceEffect};
use cadre_store::Store;
use cadre_store::branches::{Fork, SessionFork, SessionForkOutcome};
use cadre_store::rows::{AcceptOutcome, Lineage, NewRun, RunFilter, StartedRun};
use serde_json::Map;

use super::Database;
use super::fixtures::*;

fn user(text: &str) -> Message {
    Message::text(Role::User, text, now())
}

fn fork_of(source: &RunId, keep: u64, of: u64, input: Option<&str>) -> Fork {
    Fork { source: source.clone(), keep, of, input: input.map(user), regenerate: None }
}

/// Forks into the source's session; answers the new run.
async fn forked(store: &dyn Store, session_id: &str, fork: Fork) -> RunId {
    match store.fork(new_run(session_id), fork).await.unwrap() {
        Some(AcceptOutcome::Accepted { run, started: None, .. }) => run.run_id,
        other => panic!("not forked: {other:?}"),
    }
}

async fn started(store: &dyn Store, session_id: &str, run_id: &RunId) -> StartedRun {
    let lease = lease(store, session_id, "w").await;
    store.start(run_id, &lease, now()).await.unwrap().unwrap()
}

/// A turn of four messages: question, call, result, answer. The call has changed a file.
async fn turn_with_a_tool(store: &dyn Store, session_id: &str) -> RunId {
    let (run_id, lease) = running(store, session_id).await;
    let call = ToolCall { id: "c1".into(), name: "shell".into(), arguments: "{}".into() };
    let tool = ToolExecution { tool_call_id: "c1".into(), tool_name: "shell".into(), ..ToolExecution::default() };
    let effect = WorkspaceEffect { workspace_id: "w".into(), files: vec!["a".into()], ..WorkspaceEffect::default() };
    let asks = Message { tool_calls: vec![call.clone()], ..Message::text(Role::Assistant, "calls", now()) };
    let entries = vec![
        message(Role::User, "q"),
        record(Record::Message(asks)),
        record(Record::ToolStarted { tool: tool.clone(), idempotent: true }),
        record(Record::ToolFinished { tool, effect: Some(effect), unknown_outcome: false }),
        record(Record::Message(Message::tool_result(&call, "r", false, now()))),
        message(Role::Assistant, "a"),
        completed("a"),
    ];
    appended(append(store, session_id, &run_id, lease.epoch, 0, entries).await);
    run_id
}

pub async fn a_fork_begins_with_what_is_kept(database: &impl Database) {
    let store = database.open();
    let source = turn_with_a_tool(&*store, "s").await;
    let before = store.detail(&source, None).await.unwrap().unwrap();
    let run_id = forked(&*store, "s", fork_of(&source, 3, 4, Some("and now?"))).await;
    let detail = store.detail(&run_id, None).await.unwrap().unwrap();
    assert_eq!(said(&detail.messages), ["q", "calls", "r", "and now?"], "before it has begun");
    let lineage =
        Lineage { run_id: Some(source.clone()), message_index: Some(3), session_id: None, regenerated_from: None };
    assert_eq!((detail.run.status, &detail.run.lineage), (RunStatus::Pending, &lineage));
    let started = started(&*store, "s", &run_id).await;
    assert_eq!(said(&started.progress.messages), said(&detail.messages));
    assert_eq!((started.progress.next_index, started.run.attempt, started.progress.model_calls), (0, 1, 0));
    assert!(started.progress.tool_calls[0].finished && started.progress.tool_calls.len() == 1);
    assert!(started.history.is_empty(), "what it has kept is no history");
    assert_eq!(started.effects.len(), 1, "a change of the workspace happened once");
    complete(&*store, "s", &run_id, started.epoch, 0).await;
    let whole = store.detail(&run_id, None).await.unwrap().unwrap();
    assert_eq!(said(&whole.messages), ["q", "calls", "r", "and now?", "q", "a"]);
    let after = store.detail(&source, None).await.unwrap().unwrap();
    assert_eq!((after.run, after.messages, after.tools), (before.run, before.messages, before.tools));
}

pub async fn a_fork_of_a_fork_keeps_both_parts(database: &impl Database) {
    let store = database.open();
    let source = turn_with_a_tool(&*store, "s").await;
    let first = forked(&*store, "s", fork_of(&source, 4, 4, Some("more"))).await;
    let epoch = started(&*store, "s", &first).await.epoch;
    complete(&*store, "s", &first, epoch, 0).await;
    let second = forked(&*store, "s", fork_of(&first, 6, 7, Some("still more"))).await;
    let progress = started(&*store, "s", &second).await.progress;
    assert_eq!(said(&progress.messages), ["q", "calls", "r", "a", "more", "q", "still more"]);
    assert_eq!(progress.tool_calls.len(), 1);
}

pub async fn a_fork_knows_of_calls_that_had_begun(database: &impl Database) {
    let store = database.open();
    let (source, held) = running(&*store, "s").await;
    let call = ToolCall { id: "c1".into(), name: "shell".into(), arguments: "{}".into() };
    let tool = ToolExecution { tool_call_id: "c1".into(), tool_name: "shell".into(), ..ToolExecution::default() };
    let asks = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "calls", now()) };
    let began = record(Record::ToolStarted { tool, idempotent: false });
    let entries = vec![message(Role::User, "q"), record(Record::Message(asks)), began];
    append(&*store, "s", &source, held.epoch, 0, entries).await;
    fail(&*store, "s", &source, held.epoch, 3).await;
    let end = forked(&*store, "s", fork_of(&source, 2, 2, None)).await;
    let started_end = started(&*store, "s", &end).await;
    let calls = started_end.progress.tool_calls;
    assert_eq!((calls.len(), calls[0].finished, calls[0].idempotent), (1, false, false));
    complete(&*store, "s", &end, started_end.epoch, 0).await;
    let before = forked(&*store, "s", fork_of(&source, 1, 2, None)).await;
    assert!(started(&*store, "s", &before).await.progress.tool_calls.is_empty());
}

pub async fn a_fork_from_the_start_keeps_nothing(database: &impl Database) {
    let store = database.open();
    let source = turn_with_a_tool(&*store, "s").await;
    let run_id = forked(&*store, "s", fork_of(&source, 0, 4, None)).await;
    let progress = started(&*store, "s", &run_id).await.progress;
    assert!(progress.messages.is_empty() && progress.tool_calls.is_empty());
}

pub async fn what_has_not_ended_or_has_changed_is_not_forked(database: &impl Database) {
    let store = database.open();
    let source = turn_with_a_tool(&*store, "s").await;
    for fork in [fork_of(&source, 3, 3, None), fork_of(&source, 5, 4, None)] {
        assert!(store.fork(new_run("s"), fork).await.unwrap().is_none());
    }
    let (open, _) = running(&*store, "t").await;
    assert!(store.fork(new_run("t"), fork_of(&open, 0, 0, None)).await.unwrap().is_none());
    let nobody = RunId::generate();
    assert!(store.fork(new_run("s"), fork_of(&nobody, 0, 0, None)).await.unwrap().is_none());
    assert_eq!(store.list(RunFilter { limit: 10, ..RunFilter::default() }).await.unwrap().1, 2, "nothing was written");
    let full = NewRun { max_queue_depth: 1, ..new_run("s") };
    accept(&*store, "u").await;
    let outcome = store.fork(full, fork_of(&source, 4, 4, None)).await.unwrap();
    assert!(matches!(outcome, Some(AcceptOutcome::QueueFull)), "a fork is a run like others");
}

/// A turn that asks and says these.
async fn spoken(store: &dyn Store, session_id: &str, question: &str, answer: &str) -> RunId {
    let (run_id, lease) = running(store, session_id).await;
    let entries = vec![message(Role::User, question), message(Role::Assistant, answer), completed(answer)];
    appended(append(store, session_id, &run_id, lease.epoch, 0, entries).await);
    run_id
}

/// Ends a fork with an answer, and tells what it had as history.
async fn answered(store: &dyn Store, session_id: &str, run_id: &RunId, answer: &str) -> Vec<String> {
    let started = started(store, session_id, run_id).await;
    let entries = vec![message(Role::Assistant, answer), completed(answer)];
    appended(append(store, session_id, run_id, started.epoch, 0, entries).await);
    said(&started.history)
}

async fn history(store: &dyn Store, session_id: &str) -> Vec<String> {
    let run_id = accepted(store, {
        let mut agent = agent("helper");
        agent.history.runs = 10;
        new_run_of(session_id, agent)
    })
    .await
    .0
    .run_id;
    let history = said(&started(store, session_id, &run_id).await.history);
    let lease = lease(store, session_id, "w").await;
    fail(store, session_id, &run_id, lease.epoch, 0).await;
    history
}

pub async fn each_message_is_in_the_history_once(database: &impl Database) {
    let store = database.open();
    spoken(&*store, "s", "q0", "a0").await;
    let source = spoken(&*store, "s", "q1", "a1").await;
    spoken(&*store, "s", "q2", "a2").await;
    let follow_up = forked(&*store, "s", fork_of(&source, 2, 2, Some("q3"))).await;
    assert_eq!(answered(&*store, "s", &follow_up, "a3").await, ["q0", "a0"], "as its source had");
    assert_eq!(history(&*store, "s").await, ["q0", "a0", "q1", "a1", "q2", "a2", "q3", "a3"]);
    let other = forked(&*store, "s", fork_of(&follow_up, 3, 4, None)).await;
    assert_eq!(answered(&*store, "s", &other, "a4").await, ["q0", "a0"]);
    assert_eq!(history(&*store, "s").await, ["q0", "a0", "q1", "a1", "q2", "a2", "q3", "a3", "a4"]);
}

pub async fn a_regenerated_run_leaves_the_history_unless_it_is_kept(database: &impl Database) {
    let store = database.open();
    let source = spoken(&*store, "s", "q1", "a1").await;
    let beside = Fork { regenerate: Some(false), ..fork_of(&source, 1, 2, None) };
    let beside = forked(&*store, "s", beside).await;
    answered(&*store, "s", &beside, "b1").await;
    assert_eq!(history(&*store, "s").await, ["q1", "a1", "b1"], "side by side");
    let instead = Fork { regenerate: Some(true), ..fork_of(&source, 1, 2, Some("shorter")) };
    let instead = forked(&*store, "s", instead).await;
    let row = store.run(&instead).await.unwrap().unwrap();
    assert_eq!(row.lineage.regenerated_from, Some(source.clone()));
    assert_eq!(store.run(&source).await.unwrap().unwrap().status, RunStatus::Regenerated);
    answered(&*store, "s", &instead, "c1").await;
    assert_eq!(history(&*store, "s").await, ["q1", "b1", "shorter", "c1"], "the question stays where it was kept");
    let replaced = RunFilter { status: Some(RunStatus::Regenerated), limit: 10, ..RunFilter::default() };
    assert_eq!(store.list(replaced).await.unwrap().1, 1);
    assert_eq!(store.stats().await.unwrap().completed, 3, "it has completed all the same");
}

pub fn copy(source: &str, to: &str) -> SessionFork {
    SessionFork {
        source: session(source),
        principal: None,
        session_id: session(to),
        run_prefix: format!("copy-{to}"),
        user_id: None,
        max_namespace_bytes: 0,
        at_ms: now(),
    }
}

pub async fn a_copied_session_has_all_but_the_events(database: &impl Database) {
    let store = database.open();
    let source = turn_with_a_tool(&*store, "s").await;
    let blob = store.put(&place("s"), vec![7; (1 << 20) + 5]).await.unwrap().unwrap();
    let stateful = NewRun { session_state: Map::from_iter([("k".to_owned(), 1.into())]), ..new_run("s") };
    let Some(AcceptOutcome::Accepted { run, .. }) = store.fork(stateful, fork_of(&source, 3, 4, None)).await.unwrap()
    else {
        panic!("not forked")
    };
    answered(&*store, "s", &run.run_id, "b").await;
    accept(&*store, "s").await;
    let outcome = store.fork_session(copy("s", "t")).await.unwrap();
    assert_eq!(outcome, SessionForkOutcome::Forked { runs: 2 }, "the one that waits is not copied");

    let (old, new) =
        (store.session(&session("s")).await.unwrap().unwrap(), store.session(&session("t")).await.unwrap().unwrap());
    assert_eq!(
        (&new.name, &new.state, &new.principal, &new.user_id),
        (&old.name, &old.state, &old.principal, &old.user_id)
    );
    let (first, second) = (RunId::new("copy-t-1").unwrap(), RunId::new("copy-t-2").unwrap());
    let (of, to) =
        (store.detail(&source, None).await.unwrap().unwrap(), store.detail(&first, None).await.unwrap().unwrap());
    assert_eq!((&to.messages, &to.tools, &to.run.content), (&of.messages, &of.tools, &of.run.content));
    assert_eq!(
        (to.run.status, to.run.next_index, to.run.created_at_ms),
        (RunStatus::Completed, 0, of.run.created_at_ms)
    );
    assert_eq!(to.run.lineage, Lineage { session_id: Some(session("s")), ..Lineage::default() });
    let fork = store.run(&second).await.unwrap().unwrap();
    assert_eq!((fork.lineage.run_id, fork.lineage.message_index), (Some(first), Some(3)), "it names the copy");
    assert_eq!(store.events(&second, None, usize::MAX).await.unwrap(), None);
    let copied = cadre_store::rows::BlobKey { session_id: session("t"), ..blob };
    assert_eq!(store.get(&copied, 1 << 20, 10).await.unwrap().unwrap().bytes, [7; 5]);
    assert_eq!(history(&*store, "t").await, ["q", "calls", "r", "a", "b"], "and it goes on from there");
    let effects = started(&*store, "t", &accept(&*store, "t").await).await.effects;
    assert_eq!((effects.len(), effects[0].run_id.as_str()), (1, "copy-t-1"), "a new workspace lacks what they wrote");
    assert_eq!(store.detail(&source, None).await.unwrap().unwrap().messages, of.messages);

    store.fork_session(SessionFork { user_id: Some("bob".into()), ..copy("t", "u") }).await.unwrap();
    let again = store.run(&RunId::new("copy-u-1").unwrap()).await.unwrap().unwrap();
    assert_eq!((again.lineage.session_id, again.user_id), (Some(session("s")), Some("bob".into())), "the first one");
}

pub async fn a_copied_run_can_go_on(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    let entries = vec![message(Role::User, "q"), message(Role::System, "note")];
    append(&*store, "s", &run_id, held.epoch, 0, entries).await;
    fail(&*store, "s", &run_id, held.epoch, 2).await;
    store.fork_session(copy("s", "t")).await.unwrap();
    let copied = RunId::new("copy-t-1").unwrap();
    super::resumption::resumed(&*store, &copied, 2, Some("go on")).await;
    let started = started(&*store, "t", &copied).await;
    assert_eq!(said(&started.progress.messages), ["q", "note", "go on"]);
    let first = started.progress.next_index;
    complete(&*store, "t", &copied, started.epoch, first).await;
    let messages = store.detail(&copied, None).await.unwrap().unwrap().messages;
    assert_eq!(said(&messages), ["q", "note", "go on", "q", "a"]);
    assert_eq!(store.run(&run_id).await.unwrap().unwrap().status, RunStatus::Error);
}

pub async fn an_empty_or_too_large_session_is_not_copied(database: &impl Database) {
    let store = database.open();
    assert_eq!(store.fork_session(copy("none", "t")).await.unwrap(), SessionForkOutcome::Empty);
    accept(&*store, "s").await;
    assert_eq!(store.fork_session(copy("s", "t")).await.unwrap(), SessionForkOutcome::Empty);
    turn(&*store, "large").await;
    let most = usize::try_from(SessionFork::MAX_BYTES).unwrap();
    store.put(&place("large"), vec![0; most]).await.unwrap().unwrap();
    assert_eq!(store.fork_session(copy("large", "t")).await.unwrap(), SessionForkOutcome::TooLarge);
    assert!(store.session(&session("t")).await.unwrap().is_none());
}
