//! A run's states, input, end and metrics.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::BlobDigest;
use crate::model::Usage;

/// Where a run stands, in AgentOS's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RunStatus {
    /// Accepted and waiting.
    Pending,
    /// A worker has it.
    Running,
    /// Waits for a person.
    Paused,
    /// Ended well.
    Completed,
    /// Ended by a cancel.
    Cancelled,
    /// Ended with an error.
    Error,
    /// Replaced by a regenerated one.
    Regenerated,
}

impl RunStatus {
    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Running | Self::Paused => false,
            Self::Completed | Self::Cancelled | Self::Error | Self::Regenerated => true,
        }
    }

    /// Whether nothing more will happen until somebody asks for it: it has ended, or waits for a person.
    #[must_use]
    pub fn is_at_rest(self) -> bool {
        self == Self::Paused || self.is_terminal()
    }

    /// The text on the wire and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Paused => "PAUSED",
            Self::Completed => "COMPLETED",
            Self::Cancelled => "CANCELLED",
            Self::Error => "ERROR",
            Self::Regenerated => "REGENERATED",
        }
    }

    /// Reads that text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pending, Self::Running, Self::Paused, Self::Completed, Self::Cancelled, Self::Error, Self::Regenerated]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// A file that comes with a run. Its bytes are a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// File name: no slash, no control character, not `.` or `..`.
    pub name: String,
    /// Media type.
    pub media_type: String,
    /// Bytes.
    pub size: u64,
    /// Content address.
    pub digest: BlobDigest,
}

impl Attachment {
    /// Most bytes of one file.
    pub const MAX_BYTES: u64 = 32 << 20;

    /// Whether a file may be called so: it becomes a path inside the workspace.
    #[must_use]
    pub fn is_valid_name(name: &str) -> bool {
        !matches!(name, "" | "." | "..")
            && name.len() <= 255
            && !name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\'))
    }
}

/// A file that came with an earlier run of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// Place in the session's line of the run that it came with.
    pub run_seq: u64,
    /// The file.
    pub file: Attachment,
}

/// Files that came with earlier runs of a session, one of each name, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uploads {
    /// At most [`Self::MAX_FILES`].
    pub files: Vec<Upload>,
    /// Whether there are older ones that are not listed.
    pub truncated: bool,
}

impl Uploads {
    /// Longest list: what a turn costs must not grow with its session.
    pub const MAX_FILES: usize = 100;

    /// Whether nothing was ever uploaded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// What a run is asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInput {
    /// The user's text.
    pub text: String,
    /// Files; staged in the workspace where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Attachment>,
    /// Values that instructions may use.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub dependencies: Map<String, Value>,
    /// JSON Schema of the answer; replaces the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

/// Why a run ended with [`RunStatus::Error`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFailure {
    /// Stable kind, for example `model_provider_error`, `timeout`, `tool_call_limit`.
    pub error_type: String,
    /// Stable code below that kind, for example `rate_limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_id: Option<String>,
    /// For users: no secret, at most 2,000 characters.
    pub message: String,
    /// Whether another attempt may help.
    #[serde(default)]
    pub retryable: bool,
}

/// How an attempt ended, as the engine reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "UPPERCASE")]
pub enum RunEnd {
    /// Ended well.
    Completed {
        /// The answer: text, or the object that a schema asked for.
        content: Value,
        /// `str`, or the schema's title.
        content_type: String,
    },
    /// A cancel was obeyed.
    Cancelled {
        /// Partial answer.
        content: String,
        /// Who or what cancelled.
        reason: String,
    },
    /// Failed.
    Error(RunFailure),
}

/// Tokens, cost and times of one run, summed over its model calls by the API server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunMetrics {
    /// Tokens.
    pub usage: Usage,
    /// Cost in billionths of a US dollar; absent when a model without prices took part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
    /// Model calls.
    pub model_calls: u64,
    /// Milliseconds from acceptance to the first piece of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_ms: Option<u64>,
    /// Milliseconds from start to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// By model, where there was more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelMetrics>,
}

/// What one model did for a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelMetrics {
    /// Provider, as in the Model resource.
    pub provider: String,
    /// The provider's model id.
    pub model_id: String,
    /// Tokens.
    pub usage: Usage,
    /// Cost in billionths of a US dollar; absent for a model without prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nano_usd: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_cannot_leave_the_workspace() {
        for bad in ["", ".", "..", "a/b", "a\\b", "a\u{0}b", &"x".repeat(256)] {
            assert!(!Attachment::is_valid_name(bad), "{bad:?}");
        }
        assert!(Attachment::is_valid_name("sales 2026.csv"));
    }

    #[test]
    fn statuses_round_trip() {
        for status in [RunStatus::Pending, RunStatus::Error, RunStatus::Regenerated] {
            assert_eq!(RunStatus::parse(status.as_str()), Some(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
    }
}
