//! A model call as the engine asks for it and as the gateway answers it, free of any provider's format.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::Message;

/// A tool as offered to the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the arguments; its root is an object.
    pub parameters: Value,
}

/// Which tool the model must use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Tool(String),
}

/// One request. The gateway adds model id, parameters and credentials of the named Model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// Name of the Model resource, in the agent's namespace.
    pub model: String,
    /// The conversation, a leading system message included.
    pub messages: Vec<Message>,
    /// Tools on offer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolSpec>,
    /// Tool choice; the provider's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// JSON Schema that the answer must follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

/// A piece of an answer that is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ModelDelta {
    /// Text of the answer.
    Text(String),
    /// Visible reasoning.
    Reasoning(String),
}

/// Tokens of one or more calls. Cached tokens are part of `input_tokens`, reasoning tokens of `output_tokens`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Prompt tokens written to the provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// Answer tokens spent on reasoning.
    #[serde(default)]
    pub reasoning_tokens: u64,
}

impl Usage {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_add(other.cache_read_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
        }
    }
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FinishReason {
    /// It had said all.
    Stop,
    /// It wants tools to run.
    ToolCalls,
    /// The token limit cut it off.
    Length,
    /// The provider's policy cut it off.
    ContentFilter,
}

/// A complete answer, measured by the gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelReply {
    /// The assistant message.
    pub message: Message,
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens.
    pub usage: Usage,
    /// Cost in billionths of a US dollar, when the Model has prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
    /// Milliseconds from the request to the first piece of the answer.
    pub time_to_first_token_ms: u64,
    /// Milliseconds from the request to the end of the answer.
    pub duration_ms: u64,
    /// The provider's model id.
    pub model_id: String,
    /// Provider, as in the Model resource.
    pub provider: String,
}

/// The kind of a failed model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrorCategory {
    /// No credential, or the provider refuses it.
    Authentication,
    /// The account has no credit.
    Billing,
    /// The request is malformed.
    BadRequest,
    /// The conversation does not fit.
    ContextWindow,
    /// Refused by a policy, the provider's or the Model's.
    Policy,
    /// The Model's budget is used up.
    Budget,
    /// Too many requests.
    RateLimit,
    /// The provider is overloaded or failed.
    Provider,
    /// No answer in time.
    Timeout,
    /// The provider could not be reached, or the connection broke.
    Network,
    /// The answer could not be understood.
    Protocol,
    /// The caller took it back.
    Cancelled,
}

impl ModelErrorCategory {
    /// Whether asking again can't help.
    #[must_use]
    pub fn is_permanent(self) -> bool {
        match self {
            Self::Authentication
            | Self::Billing
            | Self::BadRequest
            | Self::ContextWindow
            | Self::Policy
            | Self::Budget
            | Self::Cancelled => true,
            Self::RateLimit | Self::Provider | Self::Timeout | Self::Network | Self::Protocol => false,
        }
    }

    /// Static name, as in metrics and error codes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::Billing => "billing",
            Self::BadRequest => "bad_request",
            Self::ContextWindow => "context_window",
            Self::Policy => "policy",
            Self::Budget => "budget",
            Self::RateLimit => "rate_limit",
            Self::Provider => "provider",
            Self::Timeout => "timeout",
            Self::Network => "network",
            Self::Protocol => "protocol",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A failed model call. The message is fit for users: no key, no header, at most 2,000 characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// Kind.
    pub category: ModelErrorCategory,
    /// What happened.
    pub message: String,
    /// The provider's HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long the provider asks to wait, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}
