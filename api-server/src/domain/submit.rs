//! What callers hand in and what they get back.

use bytes::Bytes;
use cadre_protocol::ids::{ComponentRef, RunId, SessionId};
use cadre_store::rows::{IdempotencyKey, Origin, Principal, RunRow};
use serde_json::{Map, Value};

use crate::telemetry::TraceParent;

/// A file with its bytes.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// File name; refused unless [`cadre_protocol::run::Attachment::is_valid_name`] holds.
    pub name: String,
    /// Media type.
    pub media_type: String,
    /// Content.
    pub bytes: Bytes,
}

/// A run to be.
#[derive(Debug, Clone)]
pub struct Submit {
    /// Component.
    pub component: ComponentRef,
    /// Owner of the run.
    pub principal: Principal,
    /// The caller's id for it; a new one when absent.
    pub run_id: Option<RunId>,
    /// Session to join; a new one when absent.
    pub session_id: Option<SessionId>,
    /// The user that the caller names.
    pub user_id: Option<String>,
    /// Text.
    pub text: String,
    /// Files.
    pub files: Vec<NewFile>,
    /// Metadata.
    pub metadata: Map<String, Value>,
    /// Session state; merged over what is there.
    pub session_state: Map<String, Value>,
    /// Values for instructions.
    pub dependencies: Map<String, Value>,
    /// JSON Schema of the answer; replaces the agent's.
    pub output_schema: Option<Value>,
    /// Seconds from its start until it is ended; the agent's when absent.
    pub timeout_seconds: Option<u32>,
    /// Attempts after the first; the agent's when absent.
    pub retries: Option<u32>,
    /// Where it comes from.
    pub origin: Origin,
    /// Idempotency key.
    pub idempotency: Option<IdempotencyKey>,
    /// The caller's span.
    pub trace_parent: Option<TraceParent>,
    /// Whether to refuse rather than to wait behind a run in flight.
    pub refuse_if_busy: bool,
}

impl Submit {
    /// A text for an agent over HTTP, all else absent.
    #[must_use]
    pub fn text(component: ComponentRef, principal: Principal, text: impl Into<String>) -> Self {
        Self {
            component,
            principal,
            run_id: None,
            session_id: None,
            user_id: None,
            text: text.into(),
            files: Vec::new(),
            metadata: Map::new(),
            session_state: Map::new(),
            dependencies: Map::new(),
            output_schema: None,
            timeout_seconds: None,
            retries: None,
            origin: Origin::Http,
            idempotency: None,
            trace_parent: None,
            refuse_if_busy: false,
        }
    }
}

/// An accepted run: it won't be lost.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// The run.
    pub run: RunRow,
    /// Whether the idempotency key named a run that was there already.
    pub replayed: bool,
    /// The run of the same session that it waits for.
    pub waiting_on: Option<RunId>,
}
