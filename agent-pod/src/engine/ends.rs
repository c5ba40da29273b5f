//! How a run ends, as events and records.

use cadre_protocol::event::RunEvent;
use cadre_protocol::journal::Record;
use cadre_protocol::model::{ModelError, ModelErrorCategory};
use cadre_protocol::nesting;
use cadre_protocol::requirement::RunRequirement;
use cadre_protocol::run::{RunEnd, RunFailure};
use serde_json::Value;

use super::bounds;
use super::journal::RunJournal;

/// Why the loop stops before its answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    /// The run has failed.
    Failed {
        /// Why.
        failure: RunFailure,
        /// How long the model's provider asks to wait before another attempt, in milliseconds.
        after_ms: Option<u64>,
    },
    /// The process is ending; another engine goes on.
    HandOver,
    /// Calls wait for a person.
    Paused(Vec<RunRequirement>),
}

/// Longest message of a failure, in bytes.
const MESSAGE_BYTES: usize = 2000;

/// A failure of this kind.
#[must_use]
pub fn failure(error_type: &str, message: impl AsRef<str>, retryable: bool) -> RunFailure {
    let message = bounds::prefix(message.as_ref(), MESSAGE_BYTES).to_owned();
    RunFailure { error_type: error_type.into(), error_id: None, message, retryable }
}

impl Stop {
    /// A failure of this kind.
    #[must_use]
    pub fn failed(error_type: &str, message: impl AsRef<str>, retryable: bool) -> Self {
        Self::Failed { failure: failure(error_type, message, retryable), after_ms: None }
    }
}

impl From<ModelError> for Stop {
    fn from(error: ModelError) -> Self {
        // Not the provider's fault: it was not asked.
        let kind = match error.category {
            ModelErrorCategory::Budget => "budget_exceeded",
            _ => "model_provider_error",
        };
        let failure = RunFailure {
            error_id: Some(error.category.as_str().into()),
            ..failure(kind, &error.message, !error.category.is_permanent())
        };
        Self::Failed { failure, after_ms: error.retry_after_ms }
    }
}

/// The answer: an object where a schema asks for one and the text is JSON of a depth that can be passed on, else the text.
#[must_use]
pub fn answer(text: &str, schema: Option<&Value>) -> (Value, String) {
    let parsed = schema.and_then(|schema| Some((schema, serde_json::from_str::<Value>(bare_json(text)).ok()?)));
    match parsed {
        Some((schema, value)) if (value.is_object() || value.is_array()) && nesting::fits(&value) => {
            let title = schema.get("title").and_then(Value::as_str).unwrap_or("object");
            (value, title.to_owned())
        }
        _ => (Value::String(text.to_owned()), "str".into()),
    }
}

/// Models like to put JSON into a fenced block.
fn bare_json(text: &str) -> &str {
    let text = text.trim();
    let fenced = text.strip_prefix("```json").or_else(|| text.strip_prefix("```"));
    fenced.and_then(|inner| inner.strip_suffix("```")).map_or(text, str::trim)
}

/// Writes the last entries of a run.
pub fn write(journal: &mut RunJournal, end: RunEnd) {
    let event = match &end {
        RunEnd::Completed { content, content_type } => {
            journal.event(RunEvent::RunContentCompleted {});
            RunEvent::RunCompleted { content: content.clone(), content_type: content_type.clone(), metrics: None }
        }
        RunEnd::Cancelled { content, reason } => {
            RunEvent::RunCancelled { content: content.clone(), reason: reason.clone() }
        }
        RunEnd::Error(failure) => error_event(failure),
    };
    journal.push(Some(event), Some(Record::Finished(end)));
}

/// The event of a run that has failed.
#[must_use]
pub fn error_event(failure: &RunFailure) -> RunEvent {
    RunEvent::RunError {
        content: failure.message.clone(),
        error_type: failure.error_type.clone(),
        error_id: failure.error_id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_makes_an_object_of_json_and_leaves_the_rest() {
        let schema = serde_json::json!({"title": "City", "type": "object"});
        let city = serde_json::json!({"name": "Oslo"});
        let table = [
            ("{\"name\": \"Oslo\"}", Some(&schema), city.clone(), "City"),
            ("```json\n{\"name\": \"Oslo\"}\n```", Some(&schema), city, "City"),
            ("Oslo", Some(&schema), Value::from("Oslo"), "str"),
            ("{\"name\": \"Oslo\"}", None, Value::from("{\"name\": \"Oslo\"}"), "str"),
        ];
        for (text, schema, content, content_type) in table {
            assert_eq!(answer(text, schema), (content, content_type.to_owned()), "{text}");
        }
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(answer(&deep, Some(&schema)).0, Value::from(deep));
    }
}
