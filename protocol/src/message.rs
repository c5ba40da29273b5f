//! The conversation: what the model is told and what it answers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

/// A tool call that the model asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The provider's id, unique within a run.
    pub id: String,
    /// Name of the tool as offered to the model.
    pub name: String,
    /// Arguments as the model wrote them: JSON text, perhaps malformed.
    pub arguments: String,
}

/// One message of a conversation. Append-only once stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Unique id.
    pub id: String,
    /// Who speaks.
    pub role: Role,
    /// Text.
    #[serde(default)]
    pub content: String,
    /// Calls that an assistant message asks for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool that a tool message comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Whether a tool message reports a failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tool_call_error: bool,
    /// The model's visible reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Whether it only stands for a result that there is none of, because the run ended first. A run that is resumed
    /// forgets it and looks at the call anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stand_in: bool,
    /// What the provider wants back unchanged with the next request (signatures, encrypted reasoning).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_data: Option<Value>,
    /// Unix time in milliseconds.
    pub created_at_ms: u64,
}

/// How a message begins that Cadre puts into the conversation in the user's place, because models listen to no other.
pub const NOTE: &str = "[Note from the system, not from the user]";

impl Message {
    /// Whether the user's place in the conversation is taken by a note of Cadre's own.
    #[must_use]
    pub fn is_note(&self) -> bool {
        self.role == Role::User && self.content.starts_with(NOTE)
    }

    /// A message that has only text.
    #[must_use]
    pub fn text(role: Role, content: impl Into<String>, created_at_ms: u64) -> Self {
        Self {
            id: uuid::Uuid::now_v7().to_string(),
            role,
            content: content.into(),
            tool_calls: Vec::new(),
            tool_call_id: None,
            tool_name: None,
            tool_call_error: false,
            reasoning: None,
            stand_in: false,
            provider_data: None,
            created_at_ms,
        }
    }

    /// The answer to a tool call.
    #[must_use]
    pub fn tool_result(call: &ToolCall, content: impl Into<String>, error: bool, created_at_ms: u64) -> Self {
        Self {
            tool_call_id: Some(call.id.clone()),
            tool_name: Some(call.name.clone()),
            tool_call_error: error,
            ..Self::text(Role::Tool, content, created_at_ms)
        }
    }
}
