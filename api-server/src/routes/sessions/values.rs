//! Values of sessions that clients write.

use serde_json::{Value, json};

use crate::routes::error::ApiError;
use crate::routes::fields::Fields;

/// Longest name, in characters.
pub const MAX_NAME_CHARS: usize = 255;
/// Longest id of a user or an agent, in bytes.
const MAX_ID_BYTES: usize = 512;

/// Checks a name.
pub fn check_name(body: &mut Fields, name: &str) {
    let count = name.chars().count();
    if name.trim().is_empty() || count > MAX_NAME_CHARS || name.chars().any(char::is_control) {
        let message = format!("Value error, a name has 1 to {MAX_NAME_CHARS} characters and no control characters");
        body.fail("value_error", "session_name", &message, name.into(), None);
    }
}

/// Checks the id of a user or an agent.
pub fn check_id(body: &mut Fields, field: &str, id: Option<&str>) {
    let Some(id) = id else { return };
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.chars().any(char::is_control) {
        let message = format!("Value error, 1 to {MAX_ID_BYTES} bytes without control characters");
        body.fail("value_error", field, &message, id.into(), Some(json!({ "max_length": MAX_ID_BYTES })));
    }
}

/// 422 with one wrong field of the body.
#[must_use]
pub fn wrong(field: &str, message: &str, input: Value) -> ApiError {
    let mut body = Fields::of_body(Vec::new());
    body.fail("value_error", field, message, input, None);
    body.finish().err().unwrap_or_else(|| ApiError::bad_request(message))
}
