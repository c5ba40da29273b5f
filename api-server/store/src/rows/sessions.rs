//! Sessions that clients make, change and look for.

use cadre_protocol::ids::{ComponentRef, SessionId};
use serde_json::{Map, Value};

use super::Principal;

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
