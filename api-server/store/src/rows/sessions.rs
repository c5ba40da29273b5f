//! Sessions that clients make, change and look for.

use cadre_protocol::ids::{ComponentRef, SessionId};
use cadre_protocol::run::RunStatus;
use serde_json::{Map, Value};

use super::{Principal, RunRow};

/// A session to make before its first run.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Id.
    pub session_id: SessionId,
    /// Component, if it is known.
    pub component: Option<ComponentRef>,
    /// Owner.
    pub principal: Principal,
    /// The user that the caller names.
    pub user_id: Option<String>,
    /// Name; empty lets the first input name it.
    pub name: String,
    /// State.
    pub state: Map<String, Value>,
    /// Metadata.
    pub metadata: Map<String, Value>,
    /// Now, Unix milliseconds.
    pub at_ms: u64,
}

/// What to change of a session; what is none stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionEdit {
    /// Name.
    pub name: Option<String>,
    /// State, whole.
    pub state: Option<Map<String, Value>>,
    /// Metadata, whole.
    pub metadata: Option<Map<String, Value>>,
    /// Summary, whole.
    pub summary: Option<Map<String, Value>>,
}

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Owner; none means everybody's.
    pub principal: Option<Principal>,
    /// Component.
    pub component: Option<ComponentRef>,
    /// The user that callers named.
    pub user_id: Option<String>,
    /// A part of the name; ASCII letters match in either case.
    pub name_part: Option<String>,
    /// What they are ordered by.
    pub order: SessionOrder,
    /// Whether the smallest comes first.
    pub ascending: bool,
    /// Rows to skip.
    pub offset: u64,
    /// Most rows (≤ 1,000).
    pub limit: u64,
}

/// What sessions are ordered by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionOrder {
    /// When they were made.
    #[default]
    Created,
    /// When something last happened to them.
    Updated,
    /// Their name.
    Name,
}

/// Which runs of a session.
#[derive(Debug, Clone)]
pub struct SessionRuns {
    /// The session.
    pub session_id: SessionId,
    /// Owner; none means everybody's.
    pub principal: Option<Principal>,
    /// Component.
    pub component: Option<ComponentRef>,
    /// How they stand: any of these, or anyhow when there are none.
    pub statuses: Vec<RunStatus>,
    /// Accepted then or later, Unix milliseconds.
    pub from_ms: Option<u64>,
    /// Accepted then or earlier, Unix milliseconds.
    pub to_ms: Option<u64>,
    /// Only those before this place in the session's line.
    pub before: Option<u64>,
    /// Whether the session's state is wanted with each run.
    pub with_state: bool,
}

impl SessionRuns {
    /// Most runs that are answered with their conversations.
    pub const MAX_RUNS: usize = 1_000;
    /// About how many bytes these may have together.
    pub const MAX_BYTES: u64 = 16 << 20;

    /// All of a session.
    #[must_use]
    pub fn of(session_id: SessionId) -> Self {
        Self {
            session_id,
            principal: None,
            component: None,
            statuses: Vec::new(),
            from_ms: None,
            to_ms: None,
            before: None,
            with_state: true,
        }
    }
}

/// Some runs of a session, newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunRow>,
    /// Where the next page begins, if there may be one: [`SessionRuns::before`].
    pub before: Option<u64>,
}
