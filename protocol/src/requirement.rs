//! What a person has to say before a run goes on, in the shape that AgentOS clients read.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::tool::ToolExecution;

/// Why a call of a tool waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Gate {
    /// It needs a yes.
    Confirmation,
    /// It needs values from the user.
    UserInput,
    /// It runs at the caller.
    ExternalExecution,
}

/// An argument that the user gives. Absent values are written as `null`, as AgentOS does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UserInputField {
    /// Name of the argument.
    pub name: String,
    /// `str`, `int`, `float`, `bool`, `list` or `dict`.
    pub field_type: String,
    /// What it is.
    #[serde(default)]
    pub description: Option<String>,
    /// What the user says; before, what the model has suggested.
    #[serde(default)]
    pub value: Option<Value>,
}

/// One call that a paused run waits for, with what was said about it. Absent values are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRequirement {
    /// Unique id.
    pub id: String,
    /// ISO 8601.
    pub created_at: String,
    /// The call, with the answers.
    pub tool_execution: ToolExecution,
    /// Whether it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<bool>,
    /// A word on that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation_note: Option<String>,
    /// Values that the user gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_input_schema: Option<Vec<UserInputField>>,
    /// What came of it at the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_execution_result: Option<String>,
}

impl RunRequirement {
    /// A requirement that nobody has answered.
    #[must_use]
    pub fn new(tool: ToolExecution, at_ms: u64) -> Self {
        Self {
            id: uuid::Uuid::new_v4().to_string(),
            created_at: iso(at_ms),
            confirmation: None,
            confirmation_note: None,
            user_input_schema: tool.user_input_schema.clone(),
            external_execution_result: None,
            tool_execution: tool,
        }
    }

    /// Whether it is about this call.
    #[must_use]
    pub fn is_of(&self, call_id: &str) -> bool {
        self.tool_execution.tool_call_id == call_id
    }

    /// Why the call waits.
    #[must_use]
    pub fn gate(&self) -> Gate {
        let tool = &self.tool_execution;
        if tool.external_execution_required == Some(true) {
            Gate::ExternalExecution
        } else if tool.requires_user_input == Some(true) {
            Gate::UserInput
        } else {
            Gate::Confirmation
        }
    }

    /// What was decided; none while it waits.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let tool = &self.tool_execution;
        match (tool.confirmed, self.gate()) {
            (Some(false), _) => Some(Verdict::Rejected),
            (Some(true), Gate::Confirmation) => Some(Verdict::Approved),
            (_, Gate::Confirmation) => None,
            (_, Gate::UserInput) => (tool.answered == Some(true)).then_some(Verdict::Approved),
            (_, Gate::ExternalExecution) => tool.result.is_some().then_some(Verdict::Executed),
        }
    }
}

/// What was decided about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It runs, once, with exactly the arguments that were approved.
    Approved,
    /// It does not run.
    Rejected,
    /// It ran at the caller.
    Executed,
}

impl Verdict {
    /// The text in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Executed => "executed",
        }
    }
}

/// A decision, as the engine is told it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What.
    pub verdict: Verdict,
    /// The call with the answers; its arguments are those that may run.
    pub tool: ToolExecution,
    /// Of these arguments.
    pub arguments_sha256: String,
}

/// Most bytes of requirements in one event, where each call is told twice.
const EVENT_BYTES: usize = 96 << 10;
/// Most bytes of one argument that is cut.
const CUT_BYTES: usize = 200;

/// Requirements as an event carries them: arguments are cut where an event would become too large, and left out where
/// that is not enough. The run itself shows all of them.
#[must_use]
pub fn fit(requirements: Vec<RunRequirement>) -> Vec<RunRequirement> {
    if fits(&requirements) {
        return requirements;
    }
    let cut: Vec<_> = requirements.into_iter().map(|it| it.with_values(cut)).collect();
    if fits(&cut) {
        return cut;
    }
    let mut bare: Vec<_> = cut.into_iter().map(|it| it.with_values(|_| Value::Null)).collect();
    while !fits(&bare) {
        bare.truncate(bare.len() / 2);
    }
    bare
}

fn fits(requirements: &[RunRequirement]) -> bool {
    serde_json::to_string(requirements).is_ok_and(|text| text.len() <= EVENT_BYTES)
}

fn cut(value: Value) -> Value {
    let text = match value {
        Value::String(text) => text,
        Value::Array(_) | Value::Object(_) => value.to_string(),
        plain => return plain,
    };
    if text.len() <= CUT_BYTES {
        return Value::String(text);
    }
    let end = (0..=CUT_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    Value::String(format!("{}…", text.get(..end).unwrap_or_default()))
}

impl RunRequirement {
    /// The same with other arguments and values.
    fn with_values(mut self, change: fn(Value) -> Value) -> Self {
        let tool = &mut self.tool_execution;
        tool.tool_args = std::mem::take(&mut tool.tool_args).into_iter().map(|(name, it)| (name, change(it))).collect();
        for schema in [&mut tool.user_input_schema, &mut self.user_input_schema].into_iter().flatten() {
            for field in schema {
                field.value = field.value.take().map(change);
            }
        }
        self
    }
}

/// Hex SHA-256 of arguments in their canonical form: JSON without spaces, the names of every object in order.
#[must_use]
pub fn arguments_sha256(arguments: &Map<String, Value>) -> String {
    let mut text = String::new();
    canonical_object(arguments, &mut text);
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => canonical_object(fields, text),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                canonical(item, text);
            }
            text.push(']');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

fn canonical_object(fields: &Map<String, Value>, text: &mut String) {
    let mut names: Vec<&String> = fields.keys().collect();
    names.sort();
    text.push('{');
    for (at, name) in names.into_iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&Value::from(name.as_str()).to_string());
        text.push(':');
        canonical(fields.get(name).unwrap_or(&Value::Null), text);
    }
    text.push('}');
}

/// ISO 8601 in UTC, to the millisecond. Days become dates as in Howard Hinnant's `civil_from_days`.
fn iso(ms: u64) -> String {
    let (seconds, days) = (ms / 1000 % 86_400, ms / 86_400_000 + 719_468);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}+00:00", ms % 1000)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_order_of_names_does_not_matter_and_all_else_does() {
        let hash = |text| arguments_sha256(&arguments(text));
        let one = hash(r#"{"b": [1, {"y": null, "x": "é"}], "a": 1e5}"#);
        assert_eq!(one, hash(r#"{"a":100000.0,"b":[1,{"x":"\u00e9","y":null}]}"#));
        for other in [
            r#"{"a":100000.0,"b":[{"x":"é","y":null},1]}"#,
            r#"{"a":100000,"b":[1,{"x":"é","y":null}]}"#,
            r#"{"a":100000.0,"b":[1,{"x":"é"}]}"#,
            r#"{"a":"100000.0","b":[1,{"x":"é","y":null}]}"#,
        ] {
            assert_ne!(one, hash(other), "{other}");
        }
        // printf '{"a":{"b":1,"c":"x"}}' | sha256sum
        let known = "d84222882f8f2aec85b40b1369be364785feff63d8b25bf9534c096d61fd9570";
        assert_eq!(hash(r#"{"a":{"c":"x","b":1}}"#), known);
    }

    #[test]
    fn an_event_never_becomes_too_large() {
        let call = |n: usize, bytes: usize| {
            let tool_args = [("content".to_owned(), Value::from("\u{1}".repeat(bytes)))].into_iter().collect();
            RunRequirement::new(ToolExecution { tool_call_id: n.to_string(), tool_args, ..Default::default() }, 0)
        };
        for (calls, bytes) in [(1, 10), (1, 1 << 20), (40, 1 << 20), (500, 1 << 10)] {
            let all: Vec<_> = (0..calls).map(|n| call(n, bytes)).collect();
            let event = crate::event::RunEvent::paused("x".repeat(1 << 20), all.clone());
            let size = serde_json::to_string(&event).unwrap().len();
            assert!(size + 4096 < crate::event::MAX_EVENT_BYTES, "{calls} calls of {bytes} bytes: {size}");
            let whole = matches!(event, crate::event::RunEvent::RunPaused { requirements, .. } if requirements == all);
            assert_eq!(whole, bytes == 10);
        }
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(iso(1_796_007_354_123), "2026-11-30T02:55:54.123+00:00");
        assert_eq!(iso(0), "1970-01-01T00:00:00.000+00:00");
        assert_eq!(iso(951_782_400_000), "2000-02-29T00:00:00.000+00:00");
    }

    #[test]
    fn a_requirement_has_the_shape_that_clients_read() {
        let tool = ToolExecution { tool_call_id: "c".into(), requires_confirmation: Some(true), ..Default::default() };
        let mut waits = RunRequirement::new(tool, 0);
        assert_eq!((waits.gate(), waits.verdict()), (Gate::Confirmation, None));
        let shown = serde_json::to_value(&waits).unwrap();
        let names: Vec<_> = shown.as_object().unwrap().keys().collect();
        assert_eq!(names, ["created_at", "id", "tool_execution"]);
        assert_eq!(shown["tool_execution"]["confirmed"], json!(null), "nulls are kept inside");
        waits.tool_execution.confirmed = Some(true);
        assert_eq!(waits.verdict(), Some(Verdict::Approved));
        waits.tool_execution.confirmed = Some(false);
        assert_eq!(waits.verdict(), Some(Verdict::Rejected));
    }
}
