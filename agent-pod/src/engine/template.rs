//! `{name}` in instructions, replaced by a run's dependencies or the session's state. Total: what is unknown or would
//! grow the text beyond its limit stays as it is. Values are not looked through for further placeholders.

use serde_json::{Map, Value};

/// Longest result, in bytes.
pub const MAX_BYTES: usize = 256 << 10;
const MAX_NAME: usize = 128;

/// Fills a text. The first map that knows a name wins; `a.b` descends into objects.
#[must_use]
pub fn fill(text: &str, sources: &[&Map<String, Value>]) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, from_brace) = rest.split_at(open);
        filled.push_str(before);
        match placeholder(from_brace).and_then(|(name, len)| Some((find(name, sources)?, len))) {
            Some((value, len)) if filled.len() + value.len() + rest.len() <= MAX_BYTES.max(text.len()) => {
                filled.push_str(&value);
                rest = from_brace.get(len..).unwrap_or_default();
            }
            _ => {
                filled.push('{');
                rest = from_brace.get(1..).unwrap_or_default();
            }
        }
    }
    filled.push_str(rest);
    filled
}

/// The name between braces at the start of the text, and the length of both with it.
fn placeholder(text: &str) -> Option<(&str, usize)> {
    let inner = text.strip_prefix('{')?;
    // A name is short, so a text full of braces costs no more than its length.
    let end = inner.bytes().take(MAX_NAME + 1).position(|byte| byte == b'}')?;
    let name = inner.get(..end)?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    is_name.then_some((name, name.len() + 2))
}

fn find(name: &str, sources: &[&Map<String, Value>]) -> Option<String> {
    let value = sources.iter().find_map(|source| lookup(name, source))?;
    Some(match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

fn lookup<'a>(name: &str, source: &'a Map<String, Value>) -> Option<&'a Value> {
    if let Some(value) = source.get(name) {
        return Some(value);
    }
    let mut path = name.split('.');
    let mut value = source.get(path.next()?)?;
    for step in path {
        value = value.get(step)?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: Value) -> Map<String, Value> {
        json.as_object().cloned().unwrap()
    }

    #[test]
    fn known_names_are_filled_and_others_stay() {
        let dependencies = map(serde_json::json!({"user": "Ada", "n": 3, "a": {"b": ["x"]}}));
        let state = map(serde_json::json!({"user": "Bob", "mood": "good {n}"}));
        let table = [
            ("Hi {user}, {n}!", "Hi Ada, 3!"),
            ("{mood}", "good {n}"),
            ("{a.b} {a.c} {nobody}", "[\"x\"] {a.c} {nobody}"),
            ("fn x() { y } {\"k\": {user}}", "fn x() { y } {\"k\": Ada}"),
            ("{{user}} {", "{Ada} {"),
        ];
        for (text, expected) in table {
            assert_eq!(fill(text, &[&dependencies, &state]), expected);
        }
    }

    #[test]
    fn a_text_does_not_explode() {
        let values = map(serde_json::json!({"x": "y".repeat(100 << 10)}));
        assert!(fill(&"{x}".repeat(1000), &[&values]).len() <= MAX_BYTES + 3000);
    }
}
