//! The journal: what an engine appends to a run's durable record.
//!
//! Entries are numbered per run without gaps. A batch names its first number, so a batch that is sent
//! again after a lost acknowledgement is recognized and applied once. Order of an engine's entries for one
//! model reply with tools: reply message, then per tool `ToolStarted` (durable before the tool runs), `ToolFinished`
//! and the tool message.

use serde::{Deserialize, Serialize};

use crate::event::RunEvent;
use crate::ids::{Epoch, RunId};
use crate::message::Message;
use crate::requirement::{Decision, RunRequirement};
use crate::run::RunEnd;
use crate::tool::{ToolExecution, WorkspaceEffect};

/// A fact that outlives the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Record {
    /// The conversation grows.
    Message(Message),
    /// A tool is about to run. It must not run before this is acknowledged.
    ToolStarted {
        /// The call, without a result.
        tool: ToolExecution,
        /// Whether running it twice does no harm.
        idempotent: bool,
    },
    /// A tool has a result.
    ToolFinished {
        /// The call with its result.
        tool: ToolExecution,
        /// Changes to the workspace.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effect: Option<WorkspaceEffect>,
        /// Whether the result only says that the outcome is unknown.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unknown_outcome: bool,
    },
    /// The attempt has failed in a way that may pass; another one follows, under the same epoch.
    Retry {},
    /// The attempt has ended. Always the last entry of a batch, and of the epoch for this run.
    Finished(RunEnd),
    /// The run waits for a person. As [`Record::Finished`] the last entry of a batch and of the epoch.
    Paused {
        /// What the model has said, or a sentence for people.
        content: String,
        /// The calls that wait.
        requirements: Vec<RunRequirement>,
    },
}

/// One entry: an event for streams, a record for resumption, or both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// For streams; its index is the entry's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<RunEvent>,
    /// For resumption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
}

/// Consecutive entries of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The run.
    pub run_id: RunId,
    /// The writer's epoch.
    pub epoch: Epoch,
    /// Number of the first entry.
    pub first_index: u64,
    /// Entries.
    pub entries: Vec<Entry>,
}

impl Batch {
    /// Most entries of one batch.
    pub const MAX_ENTRIES: usize = 500;
}

/// Where a tool call of an unfinished run stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCallState {
    /// The call; with a result once finished.
    pub tool: ToolExecution,
    /// Whether running it twice does no harm.
    pub idempotent: bool,
    /// Whether a result is recorded.
    pub finished: bool,
}

/// What an engine needs to go on with a run that another one began, or with a part of another run's conversation. Empty
/// for a new run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of the next entry.
    pub next_index: u64,
    /// Messages of this run so far, the user's included.
    #[serde(default)]
    pub messages: Vec<Message>,
    /// Its tool calls.
    #[serde(default)]
    pub tool_calls: Vec<ToolCallState>,
    /// Model calls since the run was started, or resumed after its end.
    #[serde(default)]
    pub model_calls: u32,
    /// [`Record::Retry`] entries since the run was accepted, or resumed after its end.
    #[serde(default)]
    pub retries: u32,
    /// What people have decided about calls that the run had paused for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
}

/// A finished tool call that changed a workspace: what `workspace_rolled_back` is computed from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEffect {
    /// Run of the call.
    pub run_id: RunId,
    /// Place of that run in its session's line, when the call was made.
    #[serde(default)]
    pub run_seq: u64,
    /// The call.
    pub tool_call_id: String,
    /// Its tool.
    pub tool_name: String,
    /// What it changed.
    pub effect: WorkspaceEffect,
}

impl RecordedEffect {
    /// How many of a session, the newest, a worker is told of.
    pub const MAX: usize = 1000;
}
