//! Why the domain refuses.

use cadre_protocol::ids::{RunId, SessionId};
use cadre_protocol::problem::ErrorCode;
use cadre_store::StoreError;
use cadre_store::rows::RunRow;

use crate::placement::PlacementError;

/// A refusal. Its text is fit for callers.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// There is no such agent.
    #[error("agent {0} not found")]
    AgentNotFound(String),
    /// The agent can't run now.
    #[error("agent {agent} is not ready: {reason}")]
    AgentNotReady {
        /// Its API id.
        agent: String,
        /// Why.
        reason: String,
    },
    /// Absent, or not the caller's.
    #[error("run {0} not found")]
    RunNotFound(String),
    /// Absent, or not the caller's.
    #[error("session {0} not found")]
    SessionNotFound(String),
    /// The session that the caller names belongs to someone else: told as if it were absent.
    #[error("session not found")]
    ForeignSession,
    /// The session that the caller names is its own, but another agent's (API id).
    #[error("the session belongs to agent {0}: a session is one agent's for good")]
    OtherAgentsSession(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// The run can't be continued so.
    #[error("cannot continue run {run_id}: {reason}")]
    NotContinuable {
        /// The run.
        run_id: RunId,
        /// Why.
        reason: String,
    },
    /// What was sent can't be accepted.
    #[error("{0}")]
    Invalid(String),
    /// Too large.
    #[error("{0}")]
    TooLarge(String),
    /// The job has not ended, has ended well, or belongs to a Run object.
    #[error("job {0} not found or not in a requeueable state")]
    NotRequeueable(String),
    /// The job failed a moment ago (seconds).
    #[error("job {0} failed within the last {1}s and may still be under way; try again later, or with force=true")]
    JustFailed(String, u64),
    /// The session id is taken.
    #[error("session {0} exists already")]
    SessionExists(String),
    /// The caller's run id is taken.
    #[error("run {0} exists already")]
    RunExists(String),
    /// The idempotency key was used for something else.
    #[error("the idempotency key was used for another request")]
    IdempotencyConflict,
    /// The session has a run in flight and the caller would not wait.
    #[error("the session is busy with run {0}")]
    SessionBusy(RunId),
    /// Too many runs wait.
    #[error("too many runs are waiting; try again later")]
    QueueFull,
    /// Too many runs of the namespace wait. Others' are still accepted.
    #[error("too many runs of namespace {0} are waiting; try again later")]
    NamespaceQueueFull(String),
    /// The namespace has as many bytes of files as it may.
    #[error("namespace {0} has no room for further files: delete sessions that are not needed any more")]
    NamespaceFilesFull(String),
    /// The run did not end in the time that the caller gave it, or before the server stops. It goes on. With the run as it
    /// was when it was looked up last.
    #[error("run {0} has not ended yet")]
    NotEnded(RunId, Option<Box<RunRow>>),
    /// The session stays, because its sandbox could not be removed.
    #[error("session {session_id} stays: its sandbox can't be removed now: {why}")]
    SandboxStays {
        /// The session.
        session_id: SessionId,
        /// Why.
        why: PlacementError,
    },
    /// The server is stopping.
    #[error("the server is stopping")]
    ShuttingDown,
    /// The record.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DomainError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::AgentNotFound(_)
            | Self::RunNotFound(_)
            | Self::SessionNotFound(_)
            | Self::ForeignSession
            | Self::OtherAgentsSession(_) => ErrorCode::NotFound,
            Self::AgentNotReady { .. } => ErrorCode::AgentNotReady,
            Self::BadRequest(_) => ErrorCode::BadRequest,
            Self::NotContinuable { .. } => ErrorCode::Conflict,
            Self::Invalid(_) => ErrorCode::Validation,
            Self::TooLarge(_) => ErrorCode::TooLarge,
            Self::NotRequeueable(_) => ErrorCode::BadRequest,
            Self::SessionExists(_) | Self::JustFailed(..) => ErrorCode::Conflict,
            Self::RunExists(_) => ErrorCode::RunExists,
            Self::IdempotencyConflict => ErrorCode::IdempotencyConflict,
            Self::SessionBusy(_) => ErrorCode::SessionBusy,
            Self::QueueFull => ErrorCode::QueueFull,
            Self::NamespaceQueueFull(_) => ErrorCode::NamespaceQueueFull,
            Self::NamespaceFilesFull(_) => ErrorCode::NamespaceFilesFull,
            Self::SandboxStays { .. } => ErrorCode::ClusterUnavailable,
            Self::NotEnded(..) | Self::ShuttingDown => ErrorCode::ShuttingDown,
            Self::Store(StoreError::Unavailable(_) | StoreError::Closed) => ErrorCode::DatabaseUnavailable,
            Self::Store(StoreError::MigrationRequired { .. }) => ErrorCode::MigrationRequired,
            Self::Store(StoreError::SchemaTooNew { .. }) => ErrorCode::SchemaMismatch,
            Self::Store(StoreError::Corrupt(_)) => ErrorCode::Internal,
        }
    }
}
