//! What goes into the record and what comes out.

mod acceptance;
pub mod jobs;
pub mod sessions;
pub mod upkeep;

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::feed::AgentReport;
use cadre_protocol::ids::{BlobDigest, ComponentRef, Epoch, Revision, RunId, SessionId, WorkerId};
use cadre_protocol::journal::{Progress, RecordedEffect};
use cadre_protocol::message::Message;
use cadre_protocol::model::{ModelReply, Usage};
use cadre_protocol::run::{RunEnd, RunFailure, RunInput, RunMetrics, RunStatus, Uploads};
use serde_json::{Map, Value};

use crate::approvals::ApprovalRow;
pub use acceptance::{AcceptOutcome, Claim, IdempotencyKey, NewRun, Origin};

/// Who a row belongs to: `key:{name}`, `k8s:{namespace}`, … Never compared across kinds, never parsed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal(pub String);

/// The right to write a session's runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Worker.
    pub worker_id: WorkerId,
    /// The worker process.
    pub registration: String,
    /// Generation.
    pub epoch: Epoch,
}

/// What an assignment is made from.
#[derive(Debug, Clone)]
pub struct StartedRun {
    /// The run, now RUNNING.
    pub run: RunRow,
    /// Epoch under which it runs.
    pub epoch: Epoch,
    /// Whether this call began the attempt. False when the lease had started it before: its assignment may have been
    /// lost, or two callers were at it at once.
    pub first: bool,
    /// Snapshot of its revision.
    pub agent: std::sync::Arc<AgentSnapshot>,
    /// Messages of earlier runs, as the agent's history policy asks, oldest first.
    pub history: Vec<Message>,
    /// What earlier attempts did.
    pub progress: Progress,
    /// Workspace changes of the session's tool calls, oldest first, at most [`RecordedEffect::MAX`].
    pub effects: Vec<RecordedEffect>,
    /// Files of the session's earlier runs.
    pub uploads: Uploads,
    /// State of the session.
    pub session_state: Map<String, Value>,
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// Id.
    pub run_id: RunId,
    /// Session.
    pub session_id: SessionId,
    /// Component.
    pub component: ComponentRef,
    /// Owner.
    pub principal: Principal,
    /// The user that the caller named.
    pub user_id: Option<String>,
    /// Where it came from.
    pub origin: Origin,
    /// Where it stands.
    pub status: RunStatus,
    /// Snapshot it runs with.
    pub revision: Revision,
    /// Attempts begun.
    pub attempt: u32,
    /// Number of the next journal entry.
    pub next_index: u64,
    /// What is asked.
    pub input: RunInput,
    /// The answer, once ended.
    pub content: Option<Value>,
    /// `str`, or a schema's title.
    pub content_type: Option<String>,
    /// Why it failed.
    pub failure: Option<RunFailure>,
    /// `PENDING`, `EXECUTING` or `PAUSED`: when a cancel reached it.
    pub cancellation_stage: Option<String>,
    /// Whether a cancel was asked for.
    pub cancel_requested: bool,
    /// Metadata.
    pub metadata: Map<String, Value>,
    /// Sums over its model calls.
    pub metrics: RunMetrics,
    /// Run limit in seconds.
    pub timeout_seconds: Option<u32>,
    /// Unix milliseconds.
    pub created_at_ms: u64,
    /// Unix milliseconds.
    pub started_at_ms: Option<u64>,
    /// Unix milliseconds.
    pub finished_at_ms: Option<u64>,
    /// Milliseconds since its start for which it has waited for a person: they do not count for its limit.
    pub paused_ms: u64,
    /// Where its conversation comes from.
    pub lineage: Lineage,
}

/// Where the beginning of a run's conversation comes from. Nothing for a run that began with its input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Run whose messages it begins with.
    pub run_id: Option<RunId>,
    /// How many of that run's messages were kept.
    pub message_index: Option<u64>,
    /// Session that the run was copied from; the first one, however often it was copied.
    pub session_id: Option<SessionId>,
    /// Run whose last answer it gives anew.
    pub regenerated_from: Option<RunId>,
}

impl Lineage {
    /// Whether the run has messages that it did not write itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.run_id.is_none() && self.session_id.is_none()
    }
}

/// A run with all that its output shows.
#[derive(Debug, Clone)]
pub struct RunDetail {
    /// The run.
    pub run: RunRow,
    /// Its messages, oldest first.
    pub messages: Vec<Message>,
    /// Its tool calls, in order.
    pub tools: Vec<cadre_protocol::journal::ToolCallState>,
    /// State of the session.
    pub session_state: Map<String, Value>,
    /// The agent's snapshot.
    pub agent: std::sync::Arc<AgentSnapshot>,
    /// While PENDING: the run before it in the line.
    pub waiting_on: Option<RunId>,
    /// The calls that it has paused for, decided ones too.
    pub approvals: Vec<ApprovalRow>,
}

/// A session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// Id.
    pub session_id: SessionId,
    /// Whose runs it has; none as long as a session that was made without one has had no run.
    pub component: Option<ComponentRef>,
    /// Owner.
    pub principal: Principal,
    /// The user that the caller named.
    pub user_id: Option<String>,
    /// Name; the first input's beginning until renamed. Empty before both.
    pub name: String,
    /// State.
    pub state: Map<String, Value>,
    /// Metadata.
    pub metadata: Map<String, Value>,
    /// What a client has written of it in short.
    pub summary: Option<Map<String, Value>>,
    /// Unix milliseconds.
    pub created_at_ms: u64,
    /// Unix milliseconds.
    pub updated_at_ms: u64,
}

/// What came of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum AppendOutcome {
    /// Durable, now or already before.
    Appended {
        /// First number that is not durable.
        next_index: u64,
        /// Rendered SSE frames of the entries that were new, with the number of the first and one past the last.
        chunk: Option<EventChunk>,
        /// If the batch ended the run.
        ended: Option<EndedRun>,
    },
    /// The epoch is over, or the run has ended.
    Fenced,
    /// The first number leaves a gap: a bug of the writer.
    Gap {
        /// The number that was expected.
        next_index: u64,
    },
    /// A limit of security rule 19: the caller ends the run.
    LimitExceeded(&'static str),
}

/// Consecutive events as they go out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventChunk {
    /// Number of the first entry.
    pub first_index: u64,
    /// One past the last entry's.
    pub next_index: u64,
    /// SSE frames.
    pub frames: std::sync::Arc<str>,
}

/// A run that has just ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedRun {
    /// How.
    pub status: RunStatus,
    /// Run of the same session that may start now.
    pub next: Option<RunId>,
    /// Tokens, cost and times.
    pub metrics: RunMetrics,
    /// Whether a cancel had been asked for.
    pub cancel_requested: bool,
    /// State of its session.
    pub session_state: Map<String, Value>,
}

/// What came of a cancel.
#[derive(Debug, Clone, PartialEq)]
pub enum CancelOutcome {
    /// It had not started; it has ended as CANCELLED, with its event.
    Ended {
        /// The event.
        chunk: Option<EventChunk>,
        /// Run of the same session that may start now.
        next: Option<RunId>,
    },
    /// It runs: its worker has to be told.
    Requested {
        /// Session.
        session_id: SessionId,
        /// Epoch under which it runs.
        epoch: Epoch,
    },
    /// It had ended.
    AlreadyEnded(RunStatus),
    /// Unknown, or not the caller's.
    NotFound,
}

/// A run that should have a worker and has none.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Run: the head of its session's line.
    pub run_id: RunId,
    /// Session.
    pub session_id: SessionId,
    /// Component.
    pub component: ComponentRef,
    /// PENDING, or RUNNING when its worker was lost.
    pub status: RunStatus,
    /// Unix milliseconds of acceptance.
    pub created_at_ms: u64,
}

/// A measured model call.
#[derive(Debug, Clone)]
pub struct ModelCallRow {
    /// Run.
    pub run_id: RunId,
    /// Model resource.
    pub model: String,
    /// Usage, times, cost.
    pub reply: ModelReply,
    /// Unix milliseconds of the reply.
    pub at_ms: u64,
}

/// What is on record of a model call: names, counts and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCallFact {
    /// Its message's id.
    pub call_id: String,
    /// Model resource.
    pub model: String,
    /// Provider.
    pub provider: String,
    /// The provider's model id.
    pub model_id: String,
    /// Why it ended.
    pub finish: String,
    /// Tokens.
    pub usage: Usage,
    /// Milliseconds to the first piece of the answer.
    pub time_to_first_token_ms: u64,
    /// Milliseconds to its end.
    pub duration_ms: u64,
    /// Unix milliseconds of the reply.
    pub at_ms: u64,
}

/// Which runs to list by their ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ends {
    /// All.
    #[default]
    Any,
    /// Those that have not ended.
    NoneYet,
    /// Those that have not ended, or ended then (Unix milliseconds) or later.
    NoneBefore(u64),
}

/// Which runs to list.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Owner; none means everybody's.
    pub principal: Option<Principal>,
    /// Component.
    pub component: Option<ComponentRef>,
    /// Session.
    pub session_id: Option<SessionId>,
    /// Status.
    pub status: Option<RunStatus>,
    /// Ends.
    pub ends: Ends,
    /// Only those made by Run objects.
    pub run_objects_only: bool,
    /// Rows to skip.
    pub offset: u64,
    /// Most rows (≤ 1,000), newest first.
    pub limit: u64,
}

/// Counts of runs by status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Waiting.
    pub pending: u64,
    /// With a worker, or waiting for another one.
    pub running: u64,
    /// Waiting for a person.
    pub paused: u64,
    /// Ended well.
    pub completed: u64,
    /// Ended with an error.
    pub error: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Unix milliseconds of acceptance of the oldest that waits.
    pub oldest_pending_at_ms: Option<u64>,
}

/// Ends a run by the server's own decision (limits, time-outs without a worker, cancel without a worker).
#[derive(Debug, Clone)]
pub struct ServerEnd {
    /// Run.
    pub run_id: RunId,
    /// End.
    pub end: RunEnd,
    /// If given, the run ends only while it executes under this epoch: not if it has been begun again since.
    pub epoch: Option<Epoch>,
    /// Unix milliseconds.
    pub at_ms: u64,
}

/// A load report for the feed.
pub type AgentLoad = AgentReport;

/// Bytes of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRange {
    /// The bytes asked for.
    pub bytes: Vec<u8>,
    /// Size of the whole.
    pub total: u64,
}

/// A blob's address: blobs are never shared between sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlobKey {
    /// Session.
    pub session_id: SessionId,
    /// Digest.
    pub digest: BlobDigest,
}

/// News of what another replica has written or knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The run has new events; perhaps it has ended.
    Run(RunId),
    /// The run waits for a worker that may be connected here.
    Waiting(RunId),
    /// The run is to be cancelled; its worker may be connected here.
    Cancel(RunId),
    /// A Run object's run has another status.
    Status(RunId),
    /// The worker has dialled in elsewhere.
    Worker(WorkerId),
    /// News may have been lost: anything may have changed.
    Missed,
}
