//! Runs, batches and workers for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cadre_protocol::agent::{AgentSnapshot, HistoryPolicy, ModelBinding, RetryPolicy};
use cadre_protocol::event::{EventContext, RunEvent};
use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId, WorkerId};
use cadre_protocol::journal::{Batch, Entry, Record};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::{FinishReason, ModelReply, Usage};
use cadre_protocol::run::{RunEnd, RunFailure, RunInput};
use cadre_store::Store;
use cadre_store::rows::{
    AcceptOutcome, AppendOutcome, EndedRun, EventChunk, Lease, ModelCallRow, NewRun, Origin, Principal, RunRow,
    StartedRun,
};
use cadre_store::shares::{BlobPlace, Shares};
use serde_json::{Map, Value};

/// The time of the first call of [`now`].
pub const EPOCH_MS: u64 = 1_796_000_000_000;

static CLOCK: AtomicU64 = AtomicU64::new(EPOCH_MS);

/// A time that is later with each call.
pub fn now() -> u64 {
    CLOCK.fetch_add(1, Ordering::Relaxed)
}

pub fn agent(name: &str) -> AgentSnapshot {
    AgentSnapshot {
        component: ComponentRef::agent("default", name),
        api_id: name.into(),
        display_name: format!("The {name}"),
        description: None,
        model: ModelBinding { name: "m".into(), provider: "Scripted".into(), model_id: "m-1".into() },
        instructions: "Help.".into(),
        expected_output: None,
        additional_context: None,
        markdown: false,
        tools: Vec::new(),
        tool_call_limit: None,
        tool_choice: None,
        max_turns: 10,
        history: HistoryPolicy { runs: 3 },
        skip_events: Vec::new(),
        output_schema: None,
        retry: RetryPolicy { retries: 0, delay_seconds: 0, exponential: false },
        timeout_seconds: None,
        max_queue_depth: None,
        max_concurrent_sessions: None,
        max_tokens: None,
        max_cost_nano_usd: None,
        on_unknown_outcome: cadre_protocol::agent::OnUnknownOutcome::Report,
        on_workspace_loss: cadre_protocol::agent::OnWorkspaceLoss::Report,
        warm_seconds: 60,
    }
}

pub fn session(id: &str) -> SessionId {
    SessionId::new(id).unwrap()
}

/// Where files of a session go, without a limit.
pub fn place(session_id: &str) -> BlobPlace {
    BlobPlace { session_id: session(session_id), namespace: "default".into(), max_bytes: 0 }
}

pub fn principal() -> Principal {
    Principal("key:test".into())
}

/// A run of the agent `helper` in a session.
pub fn new_run(session_id: &str) -> NewRun {
    new_run_of(session_id, agent("helper"))
}

pub fn new_run_of(session_id: &str, agent: AgentSnapshot) -> NewRun {
    NewRun {
        run_id: RunId::generate(),
        chosen_id: false,
        session_id: session(session_id),
        component: agent.component.clone(),
        principal: principal(),
        user_id: Some("ada".into()),
        revision: agent.revision(),
        agent: Arc::new(agent),
        input: RunInput { text: "Hello there\nsecond line".into(), ..RunInput::default() },
        metadata: Map::from_iter([("ticket".to_owned(), Value::from(7))]),
        session_state: Map::new(),
        origin: Origin::Http,
        idempotency: None,
        trace_parent: None,
        timeout_seconds: Some(60),
        max_queue_depth: 0,
        refuse_if_busy: false,
        max_running: 0,
        shares: Shares::default(),
        claim: None,
        at_ms: now(),
    }
}

pub type Accepted = (RunRow, Option<RunId>, Option<StartedRun>);

pub async fn accepted(store: &dyn Store, run: NewRun) -> Accepted {
    match store.accept(run).await.unwrap() {
        AcceptOutcome::Accepted { run, waiting_on, started } => (*run, waiting_on, started.map(|started| *started)),
        other => panic!("not accepted: {other:?}"),
    }
}

/// Accepts a run and answers its id.
pub async fn accept(store: &dyn Store, session_id: &str) -> RunId {
    accepted(store, new_run(session_id)).await.0.run_id
}

pub fn worker(name: &str) -> WorkerId {
    WorkerId::new(format!("local/{name}")).unwrap()
}

/// Gives a session to a worker whose registration is its name.
pub async fn lease(store: &dyn Store, session_id: &str, name: &str) -> Lease {
    let (session_id, worker_id) = (session(session_id), worker(name));
    let epoch = store.acquire(&session_id, &worker_id, name, now()).await.unwrap();
    Lease { worker_id, registration: name.into(), epoch }
}

/// Accepts a run and starts it.
pub async fn running(store: &dyn Store, session_id: &str) -> (RunId, Lease) {
    let run_id = accept(store, session_id).await;
    let lease = lease(store, session_id, "w").await;
    assert!(store.start(&run_id, &lease, now()).await.unwrap().is_some());
    (run_id, lease)
}

pub fn context(run_id: &RunId, session_id: &str) -> EventContext {
    EventContext {
        agent_id: "helper".into(),
        agent_name: "Helper".into(),
        run_id: run_id.clone(),
        session_id: session(session_id),
        skip: Vec::new(),
    }
}

pub fn event(event: RunEvent) -> Entry {
    Entry { at_ms: now(), event: Some(event), record: None }
}

pub fn text(content: &str) -> Entry {
    event(RunEvent::text(content))
}

pub fn record(record: Record) -> Entry {
    Entry { at_ms: now(), event: None, record: Some(record) }
}

pub fn message(role: Role, content: &str) -> Entry {
    record(Record::Message(Message::text(role, content, now())))
}

pub fn completed(content: &str) -> Entry {
    let (value, content_type) = (Value::from(content), "str".to_owned());
    Entry {
        at_ms: now(),
        event: Some(RunEvent::RunCompleted {
            content: value.clone(),
            content_type: content_type.clone(),
            metrics: None,
        }),
        record: Some(Record::Finished(RunEnd::Completed { content: value, content_type })),
    }
}

pub async fn append(
    store: &dyn Store,
    session_id: &str,
    run_id: &RunId,
    epoch: Epoch,
    first_index: u64,
    entries: Vec<Entry>,
) -> AppendOutcome {
    let batch = Batch { run_id: run_id.clone(), epoch, first_index, entries };
    store.append(&context(run_id, session_id), &batch).await.unwrap()
}

/// What an append that went well answers.
pub fn appended(outcome: AppendOutcome) -> (u64, Option<EventChunk>, Option<EndedRun>) {
    match outcome {
        AppendOutcome::Appended { next_index, chunk, ended } => (next_index, chunk, ended),
        other => panic!("not appended: {other:?}"),
    }
}

/// Ends a running run with an answer; its journal must be at `first_index`.
pub async fn complete(store: &dyn Store, session_id: &str, run_id: &RunId, epoch: Epoch, first_index: u64) -> EndedRun {
    let entries = vec![message(Role::User, "q"), message(Role::Assistant, "a"), completed("a")];
    appended(append(store, session_id, run_id, epoch, first_index, entries).await).2.unwrap()
}

/// Ends a running run with an error; its journal must be at `first_index`.
pub async fn fail(store: &dyn Store, session_id: &str, run_id: &RunId, epoch: Epoch, first_index: u64) {
    let failure = RunFailure { error_type: "x".into(), error_id: None, message: "m".into(), retryable: false };
    let failed = RunEvent::RunError { content: "m".into(), error_type: "x".into(), error_id: None };
    let end = Record::Finished(RunEnd::Error(failure));
    let entry = Entry { at_ms: now(), event: Some(failed), record: Some(end) };
    appended(append(store, session_id, run_id, epoch, first_index, vec![entry]).await);
}

/// Messages as one line each.
pub fn said(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.content.clone()).collect()
}

/// A whole turn.
pub async fn turn(store: &dyn Store, session_id: &str) -> RunId {
    let (run_id, lease) = running(store, session_id).await;
    complete(store, session_id, &run_id, lease.epoch, 0).await;
    run_id
}

pub fn model_call(run_id: &RunId, at_ms: u64, cost_nano_usd: Option<u64>) -> ModelCallRow {
    ModelCallRow {
        run_id: run_id.clone(),
        model: "m".into(),
        reply: ModelReply {
            message: Message::text(Role::Assistant, "a", at_ms),
            finish: FinishReason::Stop,
            usage: Usage { input_tokens: 100, output_tokens: 20, cache_read_tokens: 50, ..Usage::default() },
            cost_nano_usd,
            time_to_first_token_ms: 30,
            duration_ms: 200,
            model_id: "m-1".into(),
            provider: "Scripted".into(),
        },
        at_ms,
    }
}

/// All frames of a run.
pub async fn frames(store: &dyn Store, run_id: &RunId) -> String {
    let mut all = String::new();
    let mut next = 0_u64;
    while let Some(chunk) = store.events(run_id, next.checked_sub(1), usize::MAX).await.unwrap() {
        assert_eq!(chunk.first_index, next, "no gap");
        all.push_str(&chunk.frames);
        next = chunk.next_index;
    }
    all
}
