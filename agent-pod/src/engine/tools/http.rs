//! `http`: a request that the API server's gateway makes. The gateway decides what is allowed; this only describes it.

use cadre_protocol::agent::ToolBinding;
use cadre_protocol::model::ToolSpec;
use serde_json::{Value, json};

/// Name of the tool.
pub const NAME: &str = "http";

/// What the model is told of it.
#[must_use]
pub fn spec(binding: &ToolBinding) -> ToolSpec {
    let hosts = match binding.hosts.as_slice() {
        [] => "none".to_owned(),
        hosts => hosts.join(", "),
    };
    super::spec(
        NAME,
        format!("Makes an HTTP request and returns status, headers and body. Hosts that it may reach: {hosts}."),
        json!({
            "url": {"type": "string", "description": "An https or http URL."},
            "method": {
                "type": "string", "enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
                "description": "GET if absent.",
            },
            "headers": {
                "type": "object", "additionalProperties": {"type": "string"}, "description": "Request headers.",
            },
            "body": {"type": "string", "description": "Request body."},
        }),
        &["url"],
    )
}

/// Checks arguments; tells whether the request may be repeated.
pub fn read(arguments: &Value) -> Result<bool, String> {
    if !arguments.get("url").is_some_and(Value::is_string) {
        return Err("url is missing".into());
    }
    match arguments.get("method") {
        None | Some(Value::Null) => Ok(true),
        Some(Value::String(method)) => Ok(matches!(method.to_ascii_uppercase().as_str(), "GET" | "HEAD")),
        Some(_) => Err("method must be a text".into()),
    }
}
