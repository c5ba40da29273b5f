//! Runs as the queue's operators see them.

use cadre_protocol::ids::{SessionId, WorkerId};
use cadre_protocol::run::RunStatus;

use super::RunRow;

/// Which jobs to list.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// Statuses, any of them; all when empty.
    pub statuses: Vec<RunStatus>,
    /// Sessions, any of them; all when empty.
    pub session_ids: Vec<SessionId>,
    /// The user that the caller named.
    pub user_id: Option<String>,
    /// What they are ordered by.
    pub order: JobOrder,
    /// Whether the smallest comes first.
    pub ascending: bool,
    /// Rows to skip.
    pub offset: u64,
    /// Most rows (≤ 1,000).
    pub limit: u64,
}

/// What jobs are ordered by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobOrder {
    /// When they were accepted.
    #[default]
    Created,
    /// When they last changed: their end, their start or their acceptance.
    Updated,
}

/// A run with its place in the queue.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    /// The run.
    pub run: RunRow,
    /// Its place in the line of its session.
    pub seq: u64,
    /// Attempts that its agent allows.
    pub max_attempts: u32,
    /// The key that it was accepted under.
    pub idempotency_key: Option<String>,
    /// While it runs: the worker that has it, and since when, in Unix milliseconds.
    pub lease: Option<(WorkerId, u64)>,
}
