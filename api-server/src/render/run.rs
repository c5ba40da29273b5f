//! Runs in lists: AgentOS's RunSchema and run previews.

use cadre_protocol::tool::ToolExecution;
use cadre_store::rows::{RunDetail, RunRow};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::message::MessageOutput;
use super::metrics::Metrics;
use super::output::{self, RunOutput};
use super::time::iso;

/// Longest text of a preview, in characters.
const PREVIEW_CHARS: usize = 280;

/// A run of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunSchema {
    /// Run.
    pub run_id: String,
    /// Run that it is part of; empty when none.
    pub parent_run_id: String,
    /// Id of the agent.
    pub agent_id: String,
    /// Session.
    pub session_id: String,
    /// The user that the caller named; empty when none.
    pub user_id: String,
    /// As in a run's output.
    pub status: String,
    /// As in a run's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancellation_stage: Option<String>,
    /// The text that was asked.
    pub run_input: String,
    /// The answer; empty until there is one.
    #[schema(value_type = Value)]
    pub content: Value,
    /// `text` or `json`.
    pub run_response_format: String,
    /// Run whose messages it begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from_run_id: Option<String>,
    /// How many of that run's messages were kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from_message_index: Option<u64>,
    /// Session that the run was copied from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from_session_id: Option<String>,
    /// Run whose last answer it gives anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regenerated_from: Option<String>,
    /// Tokens, cost and times.
    pub metrics: Metrics,
    /// Metadata.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// Messages, oldest first.
    pub messages: Vec<MessageOutput>,
    /// Tool calls, in order.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<ToolExecution>,
    /// State of the session.
    #[schema(value_type = Object)]
    pub session_state: Map<String, Value>,
    /// ISO 8601.
    pub created_at: String,
}

/// A run of a short list.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunPreview {
    /// Run.
    pub run_id: String,
    /// Id of the agent.
    pub agent_id: String,
    /// The user that the caller named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// As in a run's output.
    pub status: String,
    /// The beginning of what was asked.
    pub run_input: String,
    /// The beginning of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_preview: Option<String>,
    /// ISO 8601.
    pub created_at: String,
}

/// A run of a list.
#[must_use]
pub fn schema(detail: RunDetail) -> RunSchema {
    let created_at = iso(detail.run.created_at_ms);
    let run = output::output(detail);
    let text = run.content_type.as_deref().unwrap_or("str") == "str";
    let RunOutput { run_id, agent_id, session_id, user_id, status, cancellation_stage, .. } = run;
    RunSchema {
        run_id,
        parent_run_id: String::new(),
        agent_id,
        session_id,
        user_id: user_id.unwrap_or_default(),
        status,
        cancellation_stage,
        run_input: run.input.input_content,
        content: run.content.unwrap_or_else(|| Value::from("")),
        run_response_format: if text { "text" } else { "json" }.to_owned(),
        forked_from_run_id: run.forked_from_run_id,
        forked_from_message_index: run.forked_from_message_index,
        forked_from_session_id: run.forked_from_session_id,
        regenerated_from: run.regenerated_from,
        metrics: run.metrics,
        metadata: run.metadata,
        messages: run.messages,
        tools: run.tools,
        session_state: run.session_state,
        created_at,
    }
}

/// A run of a short list; `agent_id` is the agent's id in the API.
#[must_use]
pub fn preview(run: &RunRow, agent_id: String) -> RunPreview {
    RunPreview {
        run_id: run.run_id.to_string(),
        agent_id,
        user_id: run.user_id.clone(),
        status: run.status.as_str().to_owned(),
        run_input: beginning(&run.input.text),
        content_preview: output::content(run).map(|content| match content {
            Value::String(text) => beginning(&text),
            other => beginning(&other.to_string()),
        }),
        created_at: iso(run.created_at_ms),
    }
}

fn beginning(text: &str) -> String {
    text.chars().take(PREVIEW_CHARS).collect()
}
