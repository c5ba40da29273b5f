//! The operator's view of the API server: submission of Run objects, and the feed of what status is made from.
//!
//! Worker port, `/operator/v1/…`, for the operator's ServiceAccount only. The feed is one long-lived
//! response of JSON lines: first everything that is known (of runs: those that have not ended, or ended a moment ago), then
//! `Synced`, then changes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::EventMetrics;
use crate::run::{RunFailure, RunStatus};

/// `POST`: submits a Run object. Answers the run's state, the first time and any later time. Below it, `GET
/// /{namespace}/{uid}` answers the state of a run that is there.
pub const RUNS_PATH: &str = "/operator/v1/runs";
/// `GET`: the feed.
pub const FEED_PATH: &str = "/operator/v1/feed";
/// Path below [`RUNS_PATH`]`/{uid}` that cancels.
pub const CANCEL_SUFFIX: &str = "cancel";

/// A Run object as the operator submits it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubmitRun {
    /// Namespace.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`: the idempotency key, in a scope that HTTP callers can't write.
    pub uid: String,
    /// `spec.target.name`.
    pub agent: String,
    /// Text.
    pub text: String,
    /// Files with their content.
    #[serde(default)]
    pub files: Vec<InlineFile>,
    /// Session to join; a new one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Metadata kept with the run.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// JSON Schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Values for instructions.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub dependencies: Map<String, Value>,
    /// Initial session state.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub session_state: Map<String, Value>,
    /// Seconds until it is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// Attempts after the first; the agent's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// A file inside a Run object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineFile {
    /// File name.
    pub name: String,
    /// Media type.
    pub media_type: String,
    /// Content: text.
    pub content: String,
}

/// A run that a Run object made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The object's UID.
    pub uid: String,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// Run.
    pub run_id: String,
    /// Session.
    pub session_id: String,
    /// Where it stands.
    pub status: RunStatus,
    /// Attempts so far.
    pub attempts: u32,
    /// Unix time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<u64>,
    /// Unix time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at_ms: Option<u64>,
    /// Tokens and times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<EventMetrics>,
    /// The answer, at most [`RunReport::MAX_OUTPUT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Whether the answer was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_truncated: bool,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunFailure>,
    /// The run of the same session that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_on: Option<String>,
    /// What else it waits for, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// While it is paused: the calls that wait for a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_approvals: Vec<PendingApproval>,
}

/// A call that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingApproval {
    /// The model's id of the call.
    pub id: String,
    /// Its tool.
    pub tool: String,
}

impl RunReport {
    /// Longest answer in status.
    pub const MAX_OUTPUT_BYTES: usize = 4 << 10;
}

/// Whether a Model's credential can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CredentialState {
    /// The Model needs none.
    NotRequired,
    /// The Secret is there and may be used.
    Present,
    /// Secret or key is missing.
    Missing,
    /// The Secret lacks the label, or its hosts don't include the Model's.
    NotAllowed,
}

/// A Model's credential, as the gateway sees it. Never the credential, nor a hash of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialReport {
    /// Namespace of the Model.
    pub namespace: String,
    /// Model.
    pub model: String,
    /// `metadata.generation` of the Model that was looked at.
    pub generation: i64,
    /// State.
    pub state: CredentialState,
    /// What is wrong and the command that mends it.
    pub message: String,
}

/// How busy an agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    /// Namespace.
    pub namespace: String,
    /// Agent.
    pub name: String,
    /// Runs with a worker.
    pub active_runs: u32,
    /// Runs that wait.
    pub queued_runs: u32,
    /// Runs that wait for a person.
    pub paused_runs: u32,
    /// The run that ended last, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<(String, RunStatus)>,
}

/// What a Sandbox's engine says of its network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationReport {
    /// Namespace.
    pub namespace: String,
    /// Sandbox.
    pub sandbox: String,
    /// Whether forbidden destinations are refused.
    pub isolated: bool,
    /// What was tried.
    pub detail: String,
}

/// A line of the feed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum FeedItem {
    /// A run that a Run object made has changed.
    Run(Box<RunReport>),
    /// A Model's credential.
    Credential(CredentialReport),
    /// An agent's load.
    Agent(AgentReport),
    /// A Sandbox's network.
    Isolation(IsolationReport),
    /// All that was known at the start has been told.
    Synced {},
    /// Nothing new; at least every 15 s.
    KeepAlive {},
}
