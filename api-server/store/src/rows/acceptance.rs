//! Accepting a run: what is asked of the record, and what came of it.

use std::sync::Arc;

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::{ComponentRef, Revision, RunId, SessionId, WorkerId};
use cadre_protocol::run::RunInput;
use serde_json::{Map, Value};

use super::{Lease, Principal, RunRow, StartedRun};
use crate::shares::Shares;

/// Where a run came from. Part of the scope of idempotency keys, so that an HTTP caller can't take a Run object's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The HTTP API.
    Http,
    /// A Run object.
    RunObject {
        /// Its UID.
        uid: String,
        /// Its name; the namespace is the component's.
        name: String,
    },
}

/// An idempotency key with the hash of the request's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The caller's text (≤ 512 characters), or the Run object's UID.
    pub key: String,
    /// Hex SHA-256 of the canonical body: the same key with another body is a conflict.
    pub body_sha256: String,
}

/// A run to accept.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Id.
    pub run_id: RunId,
    /// Whether the caller chose the id: only then can a cancel have come before the run.
    pub chosen_id: bool,
    /// Session; created if it does not exist.
    pub session_id: SessionId,
    /// Component.
    pub component: ComponentRef,
    /// Owner of run and session.
    pub principal: Principal,
    /// The user that the caller names.
    pub user_id: Option<String>,
    /// Snapshot that it will be run with; stored once a revision.
    pub agent: Arc<AgentSnapshot>,
    /// Its content address.
    pub revision: Revision,
    /// What is asked. Blobs of its files are already stored.
    pub input: RunInput,
    /// Metadata.
    pub metadata: Map<String, Value>,
    /// State for a new session; merged over an existing one's.
    pub session_state: Map<String, Value>,
    /// Origin.
    pub origin: Origin,
    /// Idempotency key.
    pub idempotency: Option<IdempotencyKey>,
    /// The caller's span, as a W3C `traceparent`.
    pub trace_parent: Option<String>,
    /// Seconds that it may take from its start; none means no limit.
    pub timeout_seconds: Option<u32>,
    /// Most waiting runs over all agents before acceptance is refused; 0 means no limit.
    pub max_queue_depth: u32,
    /// Whether to answer [`AcceptOutcome::SessionBusy`] instead of queueing behind a run in flight.
    pub refuse_if_busy: bool,
    /// Most sessions of all agents that run at once; 0 means no limit.
    pub max_running: u32,
    /// What its namespace may take.
    pub shares: Shares,
    /// If given, the run is the head of its line and there is a slot for it: start it in the same commit.
    pub claim: Option<Claim>,
    /// Now, Unix milliseconds.
    pub at_ms: u64,
}

/// The worker process that a run is accepted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It has this lease. If that is the session's no more, the run waits.
    Held(Lease),
    /// It gets the lease of the session, unless another worker has that.
    New {
        /// Worker.
        worker_id: WorkerId,
        /// The process.
        registration: String,
    },
}

/// What came of an acceptance.
#[derive(Debug, Clone)]
pub enum AcceptOutcome {
    /// Committed.
    Accepted {
        /// The run.
        run: Box<RunRow>,
        /// Run of the same session that is before it in the line.
        waiting_on: Option<RunId>,
        /// What its worker needs, if the claim was good and the run has started.
        started: Option<Box<StartedRun>>,
    },
    /// The idempotency key names this run.
    Replayed(Box<RunRow>),
    /// The idempotency key was used for another component or body.
    IdempotencyConflict,
    /// The run id is taken.
    RunExists,
    /// The session has a run in flight and the caller would not wait.
    SessionBusy(RunId),
    /// Too many runs wait.
    QueueFull,
    /// Too many runs of this namespace wait.
    NamespaceFull(String),
    /// The session belongs to someone else: answer as if it did not exist.
    ForeignSession,
    /// The session belongs to the caller, and to this component.
    OtherComponent(ComponentRef),
}
