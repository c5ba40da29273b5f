//! Calls of the HTTP API. Owns what an error answer means; knows no command and no terminal.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::multipart::Form;
use crate::transport::{Transport, Unreachable};

/// Longest body of an answer that is no stream, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The API of one server.
#[derive(Clone)]
pub struct Api {
    transport: Transport,
    token: Option<HeaderValue>,
}

/// A body as it comes in.
pub type Body = BoxStream<'static, Result<Bytes, Unreachable>>;

/// An answer.
pub struct Answer {
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Body,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There was no answer, or not all of it.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The server says no.
    #[error("{detail} ({code})")]
    Refused {
        /// Status.
        status: StatusCode,
        /// Stable code.
        code: String,
        /// For people.
        detail: String,
    },
    /// The answer makes no sense.
    #[error("the server's answer can't be read: {0}")]
    Malformed(String),
}

impl CallError {
    /// Whether the same call may succeed in a while: the server starts again, or its database does.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { status, code, .. } => {
                matches!(status.as_u16(), 502..=504)
                    && !matches!(
                        code.as_str(),
                        "agent_not_ready" | "migration_required_error" | "schema_mismatch_error"
                    )
            }
            Self::Malformed(_) => false,
        }
    }

    /// Whether there is no such thing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::NOT_FOUND)
    }
}

impl Api {
    /// The API at the other end.
    ///
    /// # Errors
    /// When the token is not fit for a header.
    pub fn new(transport: Transport, token: Option<&str>) -> Result<Self, CallError> {
        let token = token.map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
            if let Ok(value) = &mut value {
                value.set_sensitive(true);
            }
            value.map_err(|_| CallError::Malformed("the token has characters that no header can have".to_owned()))
        });
        Ok(Self { transport, token: token.transpose()? })
    }

    /// Where it is, for people.
    #[must_use]
    pub fn place(&self) -> &str {
        self.transport.place()
    }

    /// A GET whose answer is JSON.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CallError> {
        let answer = self.call(Method::GET, path, HeaderMap::new(), Bytes::new()).await?;
        let bytes = collect(answer.body).await?;
        serde_json::from_slice(&bytes).map_err(|error| CallError::Malformed(error.to_string()))
    }

    /// A POST of a form.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn post(&self, path: &str, form: &Form, more: &[(HeaderName, &str)]) -> Result<Answer, CallError> {
        let (content_type, body) = form.encode(&format!("cadre-{}", uuid::Uuid::new_v4().simple()));
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::CONTENT_TYPE, content_type.as_str())].iter().chain(more) {
            let value = HeaderValue::from_str(value).map_err(|error| CallError::Malformed(error.to_string()))?;
            headers.insert(name.clone(), value);
        }
        self.call(Method::POST, path, headers, body).await
    }

    async fn call(&self, method: Method, path: &str, mut headers: HeaderMap, body: Bytes) -> Result<Answer, CallError> {
        if let Some(token) = &self.token {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        let response = self.transport.send(method, path, headers, body).await?;
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            return Ok(Answer { headers: parts.headers, body });
        }
        let bytes = collect(body).await.unwrap_or_default();
        Err(refused(parts.status, &bytes))
    }
}

/// All of a body.
///
/// # Errors
/// When it breaks off or is too long.
pub async fn collect(mut body: Body) -> Result<Vec<u8>, CallError> {
    use futures::StreamExt as _;
    let mut bytes = Vec::new();
    while let Some(chunk) = body.next().await {
        bytes.extend_from_slice(&chunk?);
        if bytes.len() > MAX_ANSWER_BYTES {
            return Err(CallError::Malformed("it is too long".to_owned()));
        }
    }
    Ok(bytes)
}

/// Reads an error answer: AgentOS's `detail`, as text or as a list of wrong fields, and the code.
fn refused(status: StatusCode, body: &[u8]) -> CallError {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let code = body.get("error_id").and_then(Value::as_str).map_or_else(|| fallback(status), str::to_owned);
    let detail = match body.get("detail") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(fields)) => fields.iter().map(field).collect::<Vec<_>>().join("; "),
        _ => format!("the server answered {status}"),
    };
    CallError::Refused { status, code, detail }
}

fn fallback(status: StatusCode) -> String {
    if status == StatusCode::UNPROCESSABLE_ENTITY { "validation_error".to_owned() } else { status.as_str().to_owned() }
}

fn field(error: &Value) -> String {
    let name = error.pointer("/loc").and_then(Value::as_array).and_then(|loc| loc.last()).and_then(Value::as_str);
    let message = error.get("msg").and_then(Value::as_str).unwrap_or("is wrong");
    format!("{}: {message}", name.unwrap_or("request"))
}

/// A path segment.
#[must_use]
pub fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => encoded.push(char::from(byte)),
            // Dots are fine inside of names; alone they would walk up.
            b'.' if !text.trim_matches('.').is_empty() => encoded.push('.'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// How long a client waits for a byte of a stream: servers send a comment every 15 seconds.
pub const SILENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_answers_become_a_line_with_the_code() {
        for (status, body, line) in [
            (404, r#"{"detail":"Agent not found","error_id":"not_found"}"#, "Agent not found (not_found)"),
            (
                422,
                r#"{"detail":[{"loc":["body","message"],"msg":"Field required"},{"loc":["body","stream"],"msg":"bad"}]}"#,
                "message: Field required; stream: bad (validation_error)",
            ),
            (502, "<html>", "the server answered 502 Bad Gateway (502)"),
        ] {
            let error = refused(StatusCode::from_u16(status).unwrap(), body.as_bytes());
            assert_eq!(error.to_string(), line);
        }
    }

    #[test]
    fn only_what_can_pass_is_tried_again() {
        let error = |status, code: &str| {
            refused(
                StatusCode::from_u16(status).unwrap(),
                format!(r#"{{"detail":"x","error_id":"{code}"}}"#).as_bytes(),
            )
        };
        assert!(error(503, "database_unavailable").may_pass() && error(503, "shutting_down").may_pass());
        for (status, code) in [(503, "agent_not_ready"), (401, "unauthorized"), (500, "internal_error")] {
            assert!(!error(status, code).may_pass(), "{code}");
        }
        assert!(error(404, "not_found").is_not_found());
    }

    #[test]
    fn segments_stay_segments() {
        assert_eq!(segment("team-a.helper"), "team-a.helper");
        assert_eq!(segment("a/b c?d#e"), "a%2Fb%20c%3Fd%23e");
        assert_eq!((segment(".."), segment(".")), ("%2E%2E".into(), "%2E".into()));
    }
}
