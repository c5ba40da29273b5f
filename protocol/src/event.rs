//! Stream events in the names and fields of AgentOS 3.1, and their rendering as server-sent events.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{RunId, SessionId};
use crate::requirement::{self, RunRequirement};
use crate::tool::ToolExecution;

/// Tokens and times that events carry; the same fields as a run's `metrics`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EventMetrics {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Answer tokens.
    pub output_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// Prompt tokens from the provider's cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_read_tokens: u64,
    /// Prompt tokens into the provider's cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Reasoning tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token: Option<f64>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// What happened, with the fields that are this event's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event")]
pub enum RunEvent {
    /// The run has begun.
    RunStarted {
        /// Model id.
        model: String,
        /// Provider.
        model_provider: String,
    },
    /// The run goes on: in another worker, after an error or a pause, or from a part of another run.
    RunContinued {},
    /// A request to the model begins.
    ModelRequestStarted {
        /// Model id.
        model: String,
        /// Provider.
        model_provider: String,
    },
    /// A piece of the answer.
    RunContent {
        /// Text, or an object where a schema asked for one.
        content: Value,
        /// `str`, or the schema's title.
        content_type: String,
        /// A piece of visible reasoning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<String>,
    },
    /// The model has answered.
    ModelRequestCompleted {
        /// Model id.
        model: String,
        /// Provider.
        model_provider: String,
        /// Tokens and times.
        #[serde(flatten)]
        metrics: EventMetrics,
    },
    /// The answer is complete.
    RunContentCompleted {},
    /// A tool begins.
    ToolCallStarted {
        /// The call.
        tool: ToolExecution,
    },
    /// A tool has ended, well or not.
    ToolCallCompleted {
        /// The call with its result.
        tool: ToolExecution,
        /// A sentence for people.
        content: String,
    },
    /// A tool has failed; follows its [`RunEvent::ToolCallCompleted`].
    ToolCallError {
        /// The call.
        tool: ToolExecution,
        /// The error.
        error: String,
    },
    /// The run waits for a person.
    RunPaused {
        /// What the model has said, or a sentence for people.
        content: String,
        /// The calls that wait.
        tools: Vec<ToolExecution>,
        /// The same, with what was said about them.
        requirements: Vec<RunRequirement>,
    },
    /// Ended well.
    RunCompleted {
        /// The answer.
        content: Value,
        /// `str`, or the schema's title.
        content_type: String,
        /// Tokens and times; set by the API server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metrics: Option<EventMetrics>,
    },
    /// Ended with an error.
    RunError {
        /// The message.
        content: String,
        /// Kind.
        error_type: String,
        /// Code below the kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_id: Option<String>,
    },
    /// Ended by a cancel.
    RunCancelled {
        /// Partial answer.
        content: String,
        /// Why.
        reason: String,
    },
    /// Anything else, told apart by `type`: `retry`, `workspace_rolled_back`, `tool_outcome_unknown`.
    CustomEvent {
        /// Which.
        #[serde(rename = "type")]
        kind: String,
        /// Its fields.
        #[serde(flatten)]
        fields: Map<String, Value>,
    },
}

impl RunEvent {
    /// The name, as in the SSE `event:` line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "RunStarted",
            Self::RunContinued {} => "RunContinued",
            Self::ModelRequestStarted { .. } => "ModelRequestStarted",
            Self::RunContent { .. } => "RunContent",
            Self::ModelRequestCompleted { .. } => "ModelRequestCompleted",
            Self::RunContentCompleted {} => "RunContentCompleted",
            Self::ToolCallStarted { .. } => "ToolCallStarted",
            Self::ToolCallCompleted { .. } => "ToolCallCompleted",
            Self::ToolCallError { .. } => "ToolCallError",
            Self::RunPaused { .. } => "RunPaused",
            Self::RunCompleted { .. } => "RunCompleted",
            Self::RunError { .. } => "RunError",
            Self::RunCancelled { .. } => "RunCancelled",
            Self::CustomEvent { .. } => "CustomEvent",
        }
    }

    /// The run pauses for these calls; cut to what an event can carry.
    #[must_use]
    pub fn paused(mut content: String, requirements: Vec<RunRequirement>) -> Self {
        content.truncate(content.floor_char_boundary(MAX_PAUSE_TEXT_BYTES));
        let requirements = requirement::fit(requirements);
        let tools = requirements.iter().map(|requirement| requirement.tool_execution.clone()).collect();
        Self::RunPaused { content, tools, requirements }
    }

    /// A plain piece of the answer.
    #[must_use]
    pub fn text(content: impl Into<String>) -> Self {
        Self::RunContent { content: Value::String(content.into()), content_type: "str".into(), reasoning_content: None }
    }
}

/// The fields that all events of a run share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventContext {
    /// Id of the agent in the API.
    pub agent_id: String,
    /// Its name.
    pub agent_name: String,
    /// The run.
    pub run_id: RunId,
    /// The session.
    pub session_id: SessionId,
    /// Names of events that are not kept.
    pub skip: Vec<String>,
}

#[derive(Serialize)]
struct Rendered<'a> {
    created_at: u64,
    #[serde(flatten)]
    event: &'a RunEvent,
    agent_id: &'a str,
    agent_name: &'a str,
    run_id: &'a str,
    session_id: &'a str,
    nested_depth: u8,
    event_index: u64,
}

/// Most bytes of text that an event of a pause carries: even if each takes six as JSON it fits.
const MAX_PAUSE_TEXT_BYTES: usize = 6 << 10;

/// Largest rendered event, in bytes; a larger one ends its run (security rule 19).
pub const MAX_EVENT_BYTES: usize = 256 << 10;

impl EventContext {
    /// The `data` of an event.
    ///
    /// # Errors
    /// Only if the event holds what JSON can't, which its type rules out.
    pub fn to_json(&self, event: &RunEvent, index: u64, at_ms: u64) -> serde_json::Result<String> {
        serde_json::to_string(&Rendered {
            created_at: at_ms / 1000,
            event,
            agent_id: &self.agent_id,
            agent_name: &self.agent_name,
            run_id: self.run_id.as_str(),
            session_id: self.session_id.as_str(),
            nested_depth: 0,
            event_index: index,
        })
    }

    /// The server-sent event, as stored and as sent: `id`, `event`, `data`, blank line.
    ///
    /// # Errors
    /// As [`Self::to_json`].
    pub fn to_sse(&self, event: &RunEvent, index: u64, at_ms: u64) -> serde_json::Result<String> {
        let data = self.to_json(event, index, at_ms)?;
        Ok(format!("id: {index}\nevent: {}\ndata: {data}\n\n", event.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_shape_that_clients_read() {
        let context = EventContext {
            agent_id: "helper".into(),
            agent_name: "Helper".into(),
            run_id: RunId::new("R").unwrap(),
            session_id: SessionId::new("S").unwrap(),
            skip: Vec::new(),
        };
        let frame = context.to_sse(&RunEvent::text("hi\nthere"), 7, 1_796_007_354_123).unwrap();
        assert_eq!(
            frame,
            "id: 7\nevent: RunContent\ndata: {\"created_at\":1796007354,\"event\":\"RunContent\",\"content\":\"hi\\nthere\",\
             \"content_type\":\"str\",\"agent_id\":\"helper\",\"agent_name\":\"Helper\",\"run_id\":\"R\",\"session_id\":\"S\",\
             \"nested_depth\":0,\"event_index\":7}\n\n"
        );
    }

    #[test]
    fn custom_events_keep_their_fields() {
        let event = RunEvent::CustomEvent {
            kind: "retry".into(),
            fields: Map::from_iter([("attempt".to_owned(), Value::from(2))]),
        };
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json, serde_json::json!({"event": "CustomEvent", "type": "retry", "attempt": 2}));
        assert_eq!(serde_json::from_value::<RunEvent>(json).unwrap(), event);
    }
}
