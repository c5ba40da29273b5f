//! The schemas of specs as the CRDs have them, without descriptions, for those who check a manifest without a
//! kube-apiserver.
//!
//! Generated like the CRDs: making them from the types takes ten milliseconds, reading them a fraction of one.

use serde_json::{Map, Value};

/// JSON: the schema of `spec` by plural name.
pub const SPECS: &str = include_str!("../schemas.json");

/// That text, made from the types.
///
/// # Errors
/// As [`crate::manifest::all`].
pub fn generate() -> Result<String, serde_json::Error> {
    let mut specs = Map::new();
    for mut manifest in crate::manifest::all()? {
        let schema = &mut manifest.object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut spec = schema["properties"]["spec"].take();
        undescribe(&mut spec);
        specs.insert(manifest.plural.to_owned(), spec);
    }
    Ok(serde_json::to_string_pretty(&specs)? + "\n")
}

/// Removes descriptions of schemas; properties that are called so stay.
fn undescribe(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    for (name, field) in fields.iter_mut() {
        match (name.as_str(), field) {
            ("properties" | "patternProperties", Value::Object(properties)) => {
                properties.values_mut().for_each(undescribe);
            }
            (_, Value::Array(items)) => items.iter_mut().for_each(undescribe),
            (_, field) => undescribe(field),
        }
    }
    if fields.get("description").is_some_and(Value::is_string) {
        fields.remove("description");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_descriptions_go() {
        let mut schema = json!({"description": "x", "type": "object", "properties": {
            "description": {"description": "y", "type": "string", "maxLength": 3},
            "list": {"items": {"description": "z", "enum": ["a"]}},
        }, "allOf": [{"description": "w"}]});
        undescribe(&mut schema);
        let expected = json!({"type": "object", "properties": {
            "description": {"type": "string", "maxLength": 3}, "list": {"items": {"enum": ["a"]}},
        }, "allOf": [{}]});
        assert_eq!(schema, expected);
    }
}
