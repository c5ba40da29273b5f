//! What is kept for a while only, and what is counted by day.

use cadre_protocol::ids::{RunId, SessionId};
use cadre_protocol::model::Usage;

use super::Principal;

/// What may go. Times are Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// Idempotency keys of HTTP callers from before, unless their run has not ended.
    pub keys_before_ms: u64,
    /// Cancels of runs that never came, whose time is over.
    pub now_ms: u64,
    /// Most rows of each kind.
    pub limit: u32,
}

/// A run that ended long ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldRun {
    /// Run.
    pub run_id: RunId,
    /// Its session.
    pub session_id: SessionId,
}

/// Which days to show.
#[derive(Debug, Clone, Default)]
pub struct UsageFilter {
    /// First day, in days since 1970-01-01 UTC.
    pub from_day: Option<u64>,
    /// Last day.
    pub to_day: Option<u64>,
    /// Owner; none means everybody's.
    pub principal: Option<Principal>,
    /// The user that callers named; an empty text means none.
    pub user_id: Option<String>,
}

/// What happened on a day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DayUsage {
    /// Days since 1970-01-01 UTC.
    pub day: u64,
    /// Runs that were accepted.
    pub runs: u64,
    /// Sessions that began.
    pub sessions: u64,
    /// Different users that callers named.
    pub users: u64,
    /// Models that were asked, by provider and id.
    pub models: Vec<ModelUsage>,
    /// When it was first counted, in Unix milliseconds.
    pub created_at_ms: u64,
    /// When it was last counted, in Unix milliseconds.
    pub updated_at_ms: u64,
}

/// What was asked of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelUsage {
    /// Provider.
    pub provider: String,
    /// The provider's id of the model.
    pub model_id: String,
    /// Runs that asked it.
    pub runs: u64,
    /// Calls.
    pub calls: u64,
    /// Calls with a price.
    pub priced_calls: u64,
    /// Tokens.
    pub usage: Usage,
    /// Cost of the calls with a price, in billionths of a US dollar.
    pub cost_nano_usd: u64,
}

/// How the last refresh that somebody asked for went. Times are Unix milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefreshState {
    /// When it began.
    pub started_at_ms: Option<u64>,
    /// When it ended.
    pub finished_at_ms: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
}
