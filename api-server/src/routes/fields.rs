//! Fields of forms and queries, read with the rules and error bodies of pydantic, which AgentOS's clients know.

use cadre_protocol::ids::{RunId, SessionId};
use serde_json::{Value, json};

use super::error::{ApiError, FieldError};

/// Text fields of one request. Reading collects errors; [`Fields::finish`] answers with all of them.
#[derive(Debug)]
pub struct Fields {
    location: &'static str,
    pairs: Vec<(String, String)>,
    errors: Vec<FieldError>,
}

impl Fields {
    /// Fields of a body.
    #[must_use]
    pub fn of_body(pairs: Vec<(String, String)>) -> Self {
        Self { location: "body", pairs, errors: Vec::new() }
    }

    /// Fields of a query.
    #[must_use]
    pub fn of_query(pairs: Vec<(String, String)>) -> Self {
        Self { location: "query", pairs, errors: Vec::new() }
    }

    /// The text of a field; empty counts as absent, the last of several wins.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|v| !v.is_empty())
    }

    /// The text of a field that must be there.
    pub fn required(&mut self, name: &str) -> String {
        if let Some(text) = self.text(name) {
            return text.to_owned();
        }
        self.fail("missing", name, "Field required", Value::Null, None);
        String::new()
    }

    /// A yes or no.
    pub fn boolean(&mut self, name: &str, default: bool) -> bool {
        let Some(text) = self.text(name) else { return default };
        if let Some(value) = parse_bool(text) {
            return value;
        }
        let input = Value::from(text);
        let message = "Input should be a valid boolean, unable to interpret input";
        self.fail("bool_parsing", name, message, input, None);
        default
    }

    /// A whole number.
    pub fn integer(&mut self, name: &str) -> Option<i64> {
        let text = self.text(name)?.trim();
        let value = text.parse().ok();
        if value.is_none() {
            let input = Value::from(text);
            let message = "Input should be a valid integer, unable to parse string as an integer";
            self.fail("int_parsing", name, message, input, None);
        }
        value
    }

    /// A whole number of at least `least`.
    pub fn integer_from(&mut self, name: &str, least: u64, default: u64) -> u64 {
        let Some(value) = self.integer(name) else { return default };
        match u64::try_from(value) {
            Ok(value) if value >= least => value,
            _ => {
                let message = format!("Input should be greater than or equal to {least}");
                let input = Value::from(value.to_string());
                self.fail("greater_than_equal", name, &message, input, Some(json!({ "ge": least })));
                default
            }
        }
    }

    /// One of a list of words.
    pub fn one_of(&mut self, name: &str, allowed: &[&'static str]) -> Option<&'static str> {
        let text = self.text(name)?;
        let found = allowed.iter().find(|word| **word == text).copied();
        if found.is_none() {
            let quoted: Vec<String> = allowed.iter().map(|word| format!("'{word}'")).collect();
            let expected = quoted.join(" or ");
            let (message, input) = (format!("Input should be {expected}"), Value::from(text));
            self.fail("enum", name, &message, input, Some(json!({ "expected": expected })));
        }
        found
    }

    /// A session id, if given.
    pub fn session_id(&mut self, name: &str) -> Option<SessionId> {
        let parsed = SessionId::new(self.text(name)?);
        self.id(name, parsed)
    }

    /// A run id, if given.
    pub fn run_id(&mut self, name: &str) -> Option<RunId> {
        let parsed = RunId::new(self.text(name)?);
        self.id(name, parsed)
    }

    fn id<T>(&mut self, name: &str, parsed: Result<T, cadre_protocol::ids::InvalidId>) -> Option<T> {
        match parsed {
            Ok(id) => Some(id),
            Err(invalid) => {
                let input = Value::from(self.text(name));
                self.fail("value_error", name, &format!("Value error, {invalid}"), input, None);
                None
            }
        }
    }

    /// Notes a wrong field.
    pub fn fail(&mut self, kind: &'static str, name: &str, message: &str, input: Value, ctx: Option<Value>) {
        let loc = vec![self.location.to_owned(), name.to_owned()];
        self.errors.push(FieldError { kind, loc, msg: message.to_owned(), input, ctx });
    }

    /// All fields, for what is computed over the whole of them.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// Ends reading.
    ///
    /// # Errors
    /// 422 with every field that was wrong.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.errors.is_empty() { Ok(()) } else { Err(ApiError::validation(self.errors)) }
    }
}

/// Pydantic's words for yes and no, in any case.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "t" | "y" => Some(true),
        "false" | "0" | "no" | "off" | "f" | "n" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pairs: &[(&str, &str)]) -> Fields {
        Fields::of_body(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn all_wrong_fields_are_reported_at_once() {
        let mut fields = body(&[("message", ""), ("stream", "maybe"), ("version", "x")]);
        fields.required("message");
        fields.boolean("stream", true);
        fields.integer("version");
        let errors = serde_json::to_value(&fields.errors).unwrap();
        assert_eq!(
            errors,
            json!([
                {"type": "missing", "loc": ["body", "message"], "msg": "Field required", "input": null},
                {"type": "bool_parsing", "loc": ["body", "stream"], "input": "maybe",
                 "msg": "Input should be a valid boolean, unable to interpret input"},
                {"type": "int_parsing", "loc": ["body", "version"], "input": "x",
                 "msg": "Input should be a valid integer, unable to parse string as an integer"},
            ])
        );
        assert_eq!(fields.finish().unwrap_err().status(), 422);
    }

    #[test]
    fn booleans_have_many_spellings() {
        for yes in ["true", "True", "1", "YES", "on"] {
            assert!(body(&[("stream", yes)]).boolean("stream", false), "{yes}");
        }
        for no in ["false", "FALSE", "0", "no", "Off"] {
            assert!(!body(&[("stream", no)]).boolean("stream", true), "{no}");
        }
        assert!(body(&[("stream", "")]).boolean("stream", true));
    }

    #[test]
    fn the_last_of_several_values_wins() {
        assert_eq!(body(&[("a", "1"), ("a", "2")]).text("a"), Some("2"));
    }

    #[test]
    fn pages_start_at_one() {
        let mut fields = Fields::of_query(vec![("page".into(), "0".into()), ("limit".into(), "-3".into())]);
        assert_eq!((fields.integer_from("page", 1, 1), fields.integer_from("limit", 1, 20)), (1, 20));
        let kinds: Vec<_> = fields.errors.iter().map(|error| error.kind).collect();
        assert_eq!(kinds, ["greater_than_equal", "greater_than_equal"]);
    }
}
