//! Checks a manifest against the CRD's own schema, for those that no kube-apiserver has checked.
//!
//! Types and unknown fields are serde's to refuse; this looks at bounds, and at the few rules that the CRDs state in CEL.

use regex::Regex;
use serde_json::Value;

/// Deepest nesting that is looked at.
const MAX_DEPTH: usize = 32;

/// What is wrong with `value`, as `path: problem`.
#[must_use]
pub fn problems(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, value, "", 0, &mut found);
    found
}

fn check(schema: &Value, value: &Value, path: &str, depth: usize, found: &mut Vec<String>) {
    if depth > MAX_DEPTH || value.is_null() {
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let words: Vec<String> = allowed.iter().filter(|word| !word.is_null()).map(plain).collect();
        found.push(format!("{path}: {} is not one of {}", plain(value), words.join(", ")));
    }
    match value {
        Value::String(text) => check_text(schema, text, path, found),
        Value::Number(number) => check_number(schema, number.as_f64().unwrap_or_default(), path, found),
        Value::Array(items) => {
            check_count(schema, "minItems", "maxItems", "items", items.len(), path, found);
            for (index, item) in items.iter().enumerate() {
                check(&schema["items"], item, &format!("{path}[{index}]"), depth + 1, found);
            }
            check_keys(schema, items, path, found);
        }
        Value::Object(fields) => {
            for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(required) {
                    found.push(format!("{}: is required", join(path, required)));
                }
            }
            for (name, field) in fields {
                check(&schema["properties"][name], field, &join(path, name), depth + 1, found);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_text(schema: &Value, text: &str, path: &str, found: &mut Vec<String>) {
    check_count(schema, "minLength", "maxLength", "characters", text.chars().count(), path, found);
    if let Some(pattern) = schema["pattern"].as_str()
        && Regex::new(pattern).is_ok_and(|regex| !regex.is_match(text))
    {
        found.push(format!("{path}: {text:?} does not match {pattern}"));
    }
}

fn check_number(schema: &Value, number: f64, path: &str, found: &mut Vec<String>) {
    if let Some(least) = schema["minimum"].as_f64().filter(|least| number < *least) {
        found.push(format!("{path}: must be at least {least}"));
    }
    if let Some(most) = schema["maximum"].as_f64().filter(|most| number > *most) {
        found.push(format!("{path}: must be at most {most}"));
    }
}

fn check_count(schema: &Value, min: &str, max: &str, what: &str, count: usize, path: &str, found: &mut Vec<String>) {
    let count = count as u64;
    if let Some(least) = schema[min].as_u64().filter(|least| count < *least) {
        found.push(format!("{path}: must have at least {least} {what}"));
    }
    if let Some(most) = schema[max].as_u64().filter(|most| count > *most) {
        found.push(format!("{path}: must have at most {most} {what}"));
    }
}

/// Items of a map-like list differ in their keys.
fn check_keys(schema: &Value, items: &[Value], path: &str, found: &mut Vec<String>) {
    let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() else { return };
    let key_of = |item: &Value| keys.iter().filter_map(Value::as_str).map(|key| plain(&item[key])).collect::<Vec<_>>();
    let mut seen = std::collections::HashSet::new();
    for item in items {
        if !seen.insert(key_of(item)) {
            found.push(format!("{path}: {} is there twice", key_of(item).join(", ")));
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bounds_of_the_schema_hold() {
        let schema = json!({"required": ["name"], "properties": {
            "name": {"minLength": 1, "maxLength": 3, "pattern": "^[a-z]*$"},
            "n": {"minimum": 1.0, "maximum": 5.0},
            "kind": {"enum": ["A", "B"]},
            "list": {"maxItems": 1, "x-kubernetes-list-map-keys": ["k"], "items": {"properties": {"k": {"maxLength": 1}}}},
        }});
        assert_eq!(
            problems(&schema, &json!({"name": "abc", "n": 3, "kind": "A", "list": [{"k": "x"}]})),
            [] as [&str; 0]
        );
        let bad = json!({"name": "ABCD", "n": 9, "kind": "C", "list": [{"k": "x"}, {"k": "x"}]});
        assert_eq!(
            problems(&schema, &bad),
            [
                "kind: C is not one of A, B",
                "list: must have at most 1 items",
                "list: x is there twice",
                "n: must be at most 5",
                "name: must have at most 3 characters",
                "name: \"ABCD\" does not match ^[a-z]*$",
            ]
        );
        assert_eq!(problems(&schema, &json!({})), ["name: is required"]);
    }
}
