//! An agent as the engine needs it: resolved, immutable, content-addressed by its revision.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{ComponentRef, Revision};
use crate::model::ToolChoice;
use crate::requirement::Gate;

/// What to do about a tool call that had started and whose result is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnUnknownOutcome {
    /// Tell the model.
    #[default]
    Report,
    /// Run it again.
    Retry,
}

/// What to do when a new workspace lacks files of an old one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnWorkspaceLoss {
    /// Tell the model which files are gone.
    #[default]
    Report,
    /// End the run with an error.
    Fail,
}

/// The agent's model, by the name under which the gateway knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelBinding {
    /// Name of the Model resource.
    pub name: String,
    /// Provider, as in the Model resource.
    pub provider: String,
    /// The provider's model id.
    pub model_id: String,
}

/// A built-in tool family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Builtin {
    /// Commands in the sandbox container.
    Shell,
    /// `list_files`, `read_file`, `write_file`, `edit_file`, `search_files` in the workspace.
    Files,
    /// HTTP requests, made by the gateway, to hosts that the agent lists.
    Http,
}

impl Builtin {
    /// Whether it runs in the sandbox container.
    #[must_use]
    pub fn needs_sandbox(self) -> bool {
        match self {
            Self::Shell | Self::Files => true,
            Self::Http => false,
        }
    }

    /// Its tools, as the model sees them.
    #[must_use]
    pub fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Shell => &["shell"],
            Self::Files => &["list_files", "read_file", "write_file", "edit_file", "search_files"],
            Self::Http => &["http"],
        }
    }

    /// The arguments of its tools.
    #[must_use]
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Shell => &["command", "cwd", "timeout_seconds"],
            Self::Files => &[
                "content",
                "first_line",
                "glob",
                "max_lines",
                "new",
                "old",
                "path",
                "pattern",
                "recursive",
                "replace_all",
            ],
            Self::Http => &["body", "headers", "method", "url"],
        }
    }
}

/// A tool of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolBinding {
    /// Which family.
    pub builtin: Builtin,
    /// Seconds until a call is ended with its process group.
    pub timeout_seconds: u32,
    /// Whether the author says that running a call twice does no harm.
    #[serde(default)]
    pub idempotent: bool,
    /// Hosts that `http` may reach: exact names, or `*.suffix`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Which of its calls wait for a person.
    #[serde(default, skip_serializing_if = "Gates::is_empty")]
    pub gates: Gates,
}

/// Which calls of a tool family wait for a person. Tools are named as the model sees them; `*` is all of a family.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gates {
    /// Tools that need a yes for each call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approval: Vec<String>,
    /// Arguments that the user gives.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user_input: Vec<String>,
    /// Tools that run at the caller.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub external: Vec<String>,
}

impl Gates {
    /// Whether no call waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.approval.is_empty() && self.user_input.is_empty() && self.external.is_empty()
    }

    /// Why a call of a tool waits, given the names of the tool's arguments. None: it runs at once.
    pub fn of<'a>(&self, tool: &str, mut arguments: impl Iterator<Item = &'a str>) -> Option<Gate> {
        let has = |tools: &[String]| tools.iter().any(|name| name == "*" || name == tool);
        if has(&self.external) {
            Some(Gate::ExternalExecution)
        } else if arguments.any(|argument| self.user_input.iter().any(|name| name == argument)) {
            Some(Gate::UserInput)
        } else {
            has(&self.approval).then_some(Gate::Confirmation)
        }
    }
}

/// How much of earlier turns the model sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPolicy {
    /// Number of earlier runs of the session; 0 means none.
    pub runs: u32,
}

/// Attempts after a failure that may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Attempts after the first.
    pub retries: u32,
    /// Seconds before the first of them.
    pub delay_seconds: u32,
    /// Whether the delay doubles with each.
    pub exponential: bool,
}

/// A resolved agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSnapshot {
    /// Which agent.
    pub component: ComponentRef,
    /// Id that API clients use.
    pub api_id: String,
    /// Name that events carry.
    pub display_name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its model.
    pub model: ModelBinding,
    /// Instructions.
    #[serde(default)]
    pub instructions: String,
    /// What a good answer looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_output: Option<String>,
    /// Further context for the system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional_context: Option<String>,
    /// Whether answers should be Markdown.
    #[serde(default)]
    pub markdown: bool,
    /// Tools.
    #[serde(default)]
    pub tools: Vec<ToolBinding>,
    /// Most tool calls in one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_limit: Option<u32>,
    /// Tool choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Most model calls in one run.
    pub max_turns: u32,
    /// History.
    pub history: HistoryPolicy,
    /// Names of events that are not kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_events: Vec<String>,
    /// JSON Schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Attempts.
    pub retry: RetryPolicy,
    /// Seconds until a run is ended, when limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// Most runs that may wait, over all sessions, before an acceptance is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_queue_depth: Option<u32>,
    /// Most sessions that may run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent_sessions: Option<u32>,
    /// Most tokens of a run's model calls, prompts and answers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Most cost of a run's model calls, in billionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_nano_usd: Option<u64>,
    /// Unknown outcomes.
    #[serde(default)]
    pub on_unknown_outcome: OnUnknownOutcome,
    /// Lost workspaces.
    #[serde(default)]
    pub on_workspace_loss: OnWorkspaceLoss,
    /// Seconds that a worker stays after a turn.
    pub warm_seconds: u32,
}

impl AgentSnapshot {
    /// Whether the agent needs a sandbox container.
    #[must_use]
    pub fn needs_sandbox(&self) -> bool {
        self.tools.iter().any(|tool| tool.builtin.needs_sandbox())
    }

    /// The content address: equal snapshots have equal revisions.
    #[must_use]
    pub fn revision(&self) -> Revision {
        // A struct of plain data always serializes; an empty text would only merge revisions.
        Revision::of(&serde_json::to_vec(self).unwrap_or_default())
    }
}
