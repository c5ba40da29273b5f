//! The forms `tools` and `requirements` of a continue: what people answer about paused calls.

use serde_json::{Map, Value};

use crate::domain::decisions::Answer;
use crate::routes::error::ApiError;
use crate::routes::fields::Fields;

/// Reads both forms. Empty lists bring no answers.
///
/// # Errors
/// 400 where they are no lists of objects.
pub fn answers(fields: &Fields) -> Result<Vec<Answer>, ApiError> {
    let mut answers: Vec<Answer> = list(fields, "tools")?.iter().map(|tool| of_tool(tool, Answer::default())).collect();
    answers.extend(list(fields, "requirements")?.iter().map(of_requirement));
    if answers.iter().any(|answer| answer.call_id.is_none() && answer.requirement_id.is_none()) {
        return Err(invalid("tools", "each needs the id of a call"));
    }
    Ok(answers)
}

fn list(fields: &Fields, name: &str) -> Result<Vec<Map<String, Value>>, ApiError> {
    let Some(text) = fields.text(name) else { return Ok(Vec::new()) };
    let value: Value =
        serde_json::from_str(text).map_err(|_| ApiError::bad_request(format!("Invalid JSON in {name} field")))?;
    let items = match value {
        Value::Null => Vec::new(),
        Value::Array(items) => items,
        _ => return Err(invalid(name, "a list of objects is expected")),
    };
    let object = |item| match item {
        Value::Object(fields) => Ok(fields),
        _ => Err(invalid(name, "a list of objects is expected")),
    };
    items.into_iter().map(object).collect()
}

fn invalid(name: &str, problem: &str) -> ApiError {
    ApiError::bad_request(format!("Invalid structure or content for {name}: {problem}"))
}

/// A requirement; what its call says goes before what it says itself.
fn of_requirement(requirement: &Map<String, Value>) -> Answer {
    let own = Answer {
        requirement_id: text(requirement, "id"),
        confirmed: flag(requirement, "confirmation"),
        note: text(requirement, "confirmation_note"),
        values: values(requirement),
        result: result(requirement, "external_execution_result"),
        ..Answer::default()
    };
    match requirement.get("tool_execution") {
        Some(Value::Object(tool)) => of_tool(tool, own),
        _ => own,
    }
}

fn of_tool(tool: &Map<String, Value>, or: Answer) -> Answer {
    let mut given = values(tool);
    given.extend(or.values.into_iter().filter(|(name, _)| !values(tool).iter().any(|(has, _)| has == name)));
    Answer {
        requirement_id: or.requirement_id,
        call_id: text(tool, "tool_call_id"),
        tool_name: text(tool, "tool_name"),
        arguments: tool.get("tool_args").and_then(Value::as_object).cloned(),
        confirmed: flag(tool, "confirmed").or(or.confirmed),
        note: text(tool, "confirmation_note").or(or.note),
        answered: flag(tool, "answered"),
        values: given,
        result: result(tool, "result").or(or.result),
        failed: flag(tool, "tool_call_error"),
    }
}

fn text(of: &Map<String, Value>, name: &str) -> Option<String> {
    of.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn flag(of: &Map<String, Value>, name: &str) -> Option<bool> {
    of.get(name).and_then(Value::as_bool)
}

/// A text as it is, anything else as JSON.
fn result(of: &Map<String, Value>, name: &str) -> Option<String> {
    match of.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    }
}

/// Values that are there.
fn values(of: &Map<String, Value>) -> Vec<(String, Value)> {
    let fields = of.get("user_input_schema").and_then(Value::as_array).into_iter().flatten();
    fields
        .filter_map(|field| Some((field.get("name")?.as_str()?.to_owned(), field.get("value")?.clone())))
        .filter(|(_, value)| !value.is_null())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Vec<Answer>, ApiError> {
        answers(&Fields::of_body(vec![(name.to_owned(), text.to_owned())]))
    }

    #[test]
    fn what_a_call_says_goes_before_its_requirement() {
        let text = r#"[{"id": "q", "confirmation": true, "confirmation_note": "outer",
            "user_input_schema": [{"name": "a", "value": 1}, {"name": "b", "value": 2}],
            "tool_execution": {"tool_call_id": "c", "confirmed": false, "user_input_schema": [{"name": "a", "value": 3}]}}]"#;
        let answers = read("requirements", text).unwrap();
        let expected = Answer {
            requirement_id: Some("q".into()),
            call_id: Some("c".into()),
            confirmed: Some(false),
            note: Some("outer".into()),
            values: vec![("a".into(), 3.into()), ("b".into(), 2.into())],
            ..Answer::default()
        };
        assert_eq!(answers, [expected]);
        let bare = read("requirements", r#"[{"id": "q", "confirmation": true}]"#).unwrap();
        assert_eq!((bare[0].call_id.as_ref(), bare[0].confirmed), (None, Some(true)));
    }

    #[test]
    fn a_result_may_be_any_json() {
        let answers = read("tools", r#"[{"tool_call_id": "c", "result": {"rows": 3}, "confirmed": null}]"#).unwrap();
        assert_eq!((answers[0].result.as_deref(), answers[0].confirmed), (Some(r#"{"rows":3}"#), None));
    }

    #[test]
    fn wrong_forms_are_told() {
        for (name, text, problem) in [
            ("tools", "{", "Invalid JSON in tools field"),
            ("requirements", "{", "Invalid JSON in requirements field"),
            ("tools", "[1]", "Invalid structure or content for tools: a list of objects is expected"),
            ("tools", "{}", "Invalid structure or content for tools: a list of objects is expected"),
            ("tools", "[{}]", "Invalid structure or content for tools: each needs the id of a call"),
        ] {
            let error = read(name, text).unwrap_err();
            assert_eq!((error.status().as_u16(), error.message()), (400, problem), "{name} {text}");
        }
        for empty in ["", "null", "[]"] {
            assert_eq!(read("tools", empty).unwrap(), []);
        }
    }
}
