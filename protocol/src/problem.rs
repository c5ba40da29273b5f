//! Error bodies and stable codes of the HTTP API.

use serde::{Deserialize, Serialize};

/// Body of every error answer: AgentOS's `detail`, and codes where clients need to tell cases apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// For people.
    pub detail: String,
    /// Stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_id: Option<String>,
    /// Kind of error; the same as `error_id` where AgentOS says nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
}

/// Stable codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// No or a wrong credential.
    Unauthorized,
    /// Not allowed.
    Forbidden,
    /// Absent, or not the caller's.
    NotFound,
    /// Malformed.
    BadRequest,
    /// Well-formed but not valid.
    Validation,
    /// Contradicts what is there.
    Conflict,
    /// The key was used for something else.
    IdempotencyConflict,
    /// The run id is taken.
    RunExists,
    /// The session has a turn in flight.
    SessionBusy,
    /// The queue is full.
    QueueFull,
    /// The namespace has as many waiting runs as it may.
    NamespaceQueueFull,
    /// The namespace has as many open streams as it may.
    NamespaceStreamsFull,
    /// The namespace has as many bytes of files as it may.
    NamespaceFilesFull,
    /// Too large.
    TooLarge,
    /// The agent can't run now: its status says why.
    AgentNotReady,
    /// The database can't be reached.
    DatabaseUnavailable,
    /// The cluster can't be asked for a change.
    ClusterUnavailable,
    /// The database must be migrated.
    MigrationRequired,
    /// The database is of a newer version.
    SchemaMismatch,
    /// The server is stopping.
    ShuttingDown,
    /// Our fault.
    Internal,
}

impl ErrorCode {
    /// The text on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::BadRequest => "bad_request",
            Self::Validation => "validation_error",
            Self::Conflict => "conflict",
            Self::IdempotencyConflict => "idempotency_conflict",
            Self::RunExists => "run_exists",
            Self::SessionBusy => "session_busy",
            Self::QueueFull => "queue_full",
            Self::NamespaceQueueFull => "namespace_queue_full",
            Self::NamespaceStreamsFull => "namespace_streams_full",
            Self::NamespaceFilesFull => "namespace_files_full",
            Self::TooLarge => "too_large",
            Self::AgentNotReady => "agent_not_ready",
            Self::DatabaseUnavailable => "database_unavailable",
            Self::ClusterUnavailable => "cluster_unavailable",
            Self::MigrationRequired => "migration_required_error",
            Self::SchemaMismatch => "schema_mismatch_error",
            Self::ShuttingDown => "shutting_down",
            Self::Internal => "internal_error",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Conflict | Self::IdempotencyConflict | Self::RunExists | Self::SessionBusy => 409,
            Self::TooLarge => 413,
            Self::Validation => 422,
            Self::QueueFull | Self::NamespaceQueueFull | Self::NamespaceStreamsFull | Self::NamespaceFilesFull => 429,
            Self::Internal => 500,
            Self::AgentNotReady
            | Self::DatabaseUnavailable
            | Self::ClusterUnavailable
            | Self::MigrationRequired
            | Self::SchemaMismatch
            | Self::ShuttingDown => 503,
        }
    }
}
