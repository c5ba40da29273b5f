//! How deep JSON from outside may be nested.
//!
//! Parsers give up at 128 levels, and a value travels inside of frames, entries and rows. One that could be read at the
//! door but not behind it would break its reader's connection or its list of rows, again and again.

use serde_json::{Map, Value};

/// Most levels of arrays and objects in a value that somebody else made.
pub const MAX_LEVELS: usize = 64;

/// Whether a value has no more than [`MAX_LEVELS`] levels.
#[must_use]
pub fn fits(value: &Value) -> bool {
    within(value, MAX_LEVELS)
}

/// The same of an object that was taken apart.
#[must_use]
pub fn fields_fit(fields: &Map<String, Value>) -> bool {
    fields.values().all(|value| within(value, MAX_LEVELS - 1))
}

/// Goes no deeper than `levels`, however deep the value is.
fn within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| within(item, levels - 1)),
        Value::Object(fields) => levels > 0 && fields.values().all(|field| within(field, levels - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize, open: &str, close: &str) -> Value {
        serde_json::from_str(&format!("{}1{}", open.repeat(levels), close.repeat(levels))).unwrap()
    }

    #[test]
    fn the_last_level_fits_and_the_next_does_not() {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            assert!(fits(&nested(MAX_LEVELS, open, close)));
            assert!(!fits(&nested(MAX_LEVELS + 1, open, close)));
        }
        let fields = |levels| nested(levels, r#"{"a":"#, "}").as_object().unwrap().clone();
        assert!(fields_fit(&fields(MAX_LEVELS)) && !fields_fit(&fields(MAX_LEVELS + 1)));
    }
}
