//! JSON Schemas in the form that providers enforce.

use serde_json::{Map, Value};

/// The schema with `additionalProperties: false` on each object that lists properties and says nothing about others;
/// providers enforce only closed objects.
pub(super) fn closed(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let mut closed_map: Map<String, Value> =
                map.iter().map(|(key, value)| (key.clone(), closed(value))).collect();
            if is_object(map) {
                closed_map.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            Value::Object(closed_map)
        }
        Value::Array(list) => list.iter().map(closed).collect(),
        other => other.clone(),
    }
}

/// Whether OpenAI can enforce the schema (`strict`): each object is closed and requires all its properties.
pub(super) fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => (!is_object(map) || requires_all(map)) && map.values().all(is_strict),
        Value::Array(list) => list.iter().all(is_strict),
        _ => true,
    }
}

/// Whether a schema describes an object with properties. A property that is itself called `properties` is none.
fn is_object(map: &Map<String, Value>) -> bool {
    map.get("type").and_then(Value::as_str) == Some("object")
}

fn requires_all(map: &Map<String, Value>) -> bool {
    let required: Vec<&str> =
        map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = map.get("properties").and_then(Value::as_object);
    map.get("additionalProperties") == Some(&Value::Bool(false))
        && properties.is_none_or(|properties| properties.keys().all(|name| required.contains(&name.as_str())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_closed_and_judged() {
        let all = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": "array", "items": {"type": "object", "required": [], "properties": {}}}}});
        let shut = closed(&all);
        assert_eq!(shut["additionalProperties"], json!(false));
        assert_eq!(shut["properties"]["a"]["items"]["additionalProperties"], json!(false));
        assert!(is_strict(&shut) && !is_strict(&all));
        let optional = closed(&json!({"type": "object", "properties": {"a": {"type": "string"}}}));
        assert!(!is_strict(&optional));
        let open = json!({"type": "object", "additionalProperties": true});
        assert_eq!(closed(&open), open);
        assert!(!is_strict(&open));
    }
}
