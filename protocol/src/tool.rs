//! Tool executions: the record of a call, in the shape that AgentOS clients read.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::requirement::UserInputField;

/// Start, end (Unix seconds) and duration (seconds) of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ToolMetrics {
    /// Unix time in seconds.
    pub start_time: f64,
    /// Unix time in seconds.
    pub end_time: f64,
    /// Seconds.
    pub duration: f64,
}

/// A tool call and what came of it. Absent values are written as `null`, as AgentOS does inside tool objects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolExecution {
    /// The provider's call id.
    pub tool_call_id: String,
    /// Tool name.
    pub tool_name: String,
    /// Parsed arguments; empty when the model wrote none or malformed ones.
    pub tool_args: Map<String, Value>,
    /// Whether it failed.
    pub tool_call_error: Option<bool>,
    /// Its result, as the model sees it.
    pub result: Option<String>,
    /// Times.
    pub metrics: Option<ToolMetrics>,
    /// Run of a member that the call started.
    pub child_run_id: Option<String>,
    /// Whether the run ends with this call.
    pub stop_after_tool_call: bool,
    /// Unix time in seconds.
    pub created_at: u64,
    /// Needs a yes before it runs.
    pub requires_confirmation: Option<bool>,
    /// The answer to that.
    pub confirmed: Option<bool>,
    /// A word on the answer.
    pub confirmation_note: Option<String>,
    /// Needs values from the user.
    pub requires_user_input: Option<bool>,
    /// Which values.
    pub user_input_schema: Option<Vec<UserInputField>>,
    /// Needs feedback.
    pub user_feedback_schema: Option<Value>,
    /// Whether the user has answered.
    pub answered: Option<bool>,
    /// Runs at the caller.
    pub external_execution_required: Option<bool>,
    /// Runs at the caller without a message.
    pub external_execution_silent: Option<bool>,
    /// `required` or `audit`.
    pub approval_type: Option<String>,
    /// Approval row.
    pub approval_id: Option<String>,
    /// The call that this one is part of.
    pub parent_tool_call_id: Option<String>,
}

/// What a tool call did to the workspace, as exec-server saw it. Untrusted: names only, bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceEffect {
    /// Identity of the workspace: a new volume has a new one.
    pub workspace_id: String,
    /// Files written, relative to the workspace; at most [`Self::MAX_FILES`].
    #[serde(default)]
    pub files: Vec<String>,
    /// Files removed; at most [`Self::MAX_FILES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Whether more files changed than are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

impl WorkspaceEffect {
    /// Longest list of written files, and of removed ones.
    pub const MAX_FILES: usize = 200;
}
