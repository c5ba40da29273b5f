//! Error answers of the user port.

use axum::Json;
use axum::response::{IntoResponse, Response};
use cadre_protocol::problem::{ErrorCode, Problem};
use cadre_store::StoreError;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

use crate::auth::actor::Denied;
use crate::domain::DomainError;
use crate::streams::shares::StreamsFull;

/// One wrong field of a request, in pydantic's shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FieldError {
    /// Stable kind, for example `missing`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Where: `body` or `query`, then the field's name.
    pub loc: Vec<String>,
    /// For people.
    pub msg: String,
    /// What was sent.
    pub input: Value,
    /// Limits that the message speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx: Option<Value>,
}

/// An answer other than success. Holds only what a client may read.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    status: StatusCode,
    code: ErrorCode,
    message: String,
    fields: Vec<FieldError>,
    retry_after_seconds: Option<u32>,
}

impl ApiError {
    /// An error with the status of its code.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after_seconds = match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Some(1),
            _ => None,
        };
        Self { status, code, message: message.into(), fields: Vec::new(), retry_after_seconds }
    }

    /// 400.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    /// 404.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotFound, message)
    }

    /// 404 for a run that is absent, of another session or agent, or somebody else's: all look the same.
    #[must_use]
    pub fn run_not_found() -> Self {
        Self::not_found("Run not found")
    }

    /// 404 for a session that is absent or somebody else's.
    #[must_use]
    pub fn session_not_found(session_id: &str) -> Self {
        Self::not_found(format!("Session with id '{session_id}' not found"))
    }

    /// 405.
    #[must_use]
    pub fn method_not_allowed() -> Self {
        Self { status: StatusCode::METHOD_NOT_ALLOWED, ..Self::bad_request("Method Not Allowed") }
    }

    /// 422 with all wrong fields.
    #[must_use]
    pub fn validation(fields: Vec<FieldError>) -> Self {
        Self { fields, ..Self::new(ErrorCode::Validation, "Validation failed") }
    }

    /// 500. The cause is logged here and nowhere else; the client learns only its kind.
    #[must_use]
    pub fn internal(kind: &str, cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(kind, %cause, "request failed");
        Self::new(ErrorCode::Internal, format!("Internal server error ({kind})"))
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The text for people, as an `error` frame of a stream shows it.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        let code = match denied {
            Denied::Missing | Denied::Invalid => ErrorCode::Unauthorized,
            Denied::Foreign(_) => ErrorCode::Forbidden,
        };
        Self::new(code, denied.to_string())
    }
}

impl From<DomainError> for ApiError {
    fn from(error: DomainError) -> Self {
        match error {
            DomainError::Store(error) => error.into(),
            DomainError::AgentNotFound(_) => Self::not_found("Agent not found"),
            DomainError::RunNotFound(_) => Self::run_not_found(),
            DomainError::SessionNotFound(id) => Self::session_not_found(&id),
            DomainError::BadRequest(problem) => Self::bad_request(problem),
            DomainError::Invalid(problem) => Self::validation(vec![FieldError {
                kind: "value_error",
                loc: vec!["body".to_owned()],
                msg: format!("Value error, {problem}"),
                input: Value::Null,
                ctx: None,
            }]),
            other => Self::new(other.code(), sentence(&other.to_string())),
        }
    }
}

impl From<StreamsFull> for ApiError {
    fn from(full: StreamsFull) -> Self {
        Self::new(ErrorCode::NamespaceStreamsFull, sentence(&full.to_string()))
    }
}

/// Error texts begin in lower case, answers for people do not.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Unavailable(_) => ErrorCode::DatabaseUnavailable,
            StoreError::MigrationRequired { .. } => ErrorCode::MigrationRequired,
            StoreError::SchemaTooNew { .. } => ErrorCode::SchemaMismatch,
            StoreError::Closed => ErrorCode::ShuttingDown,
            StoreError::Corrupt(_) => return Self::internal("StoreError", &error),
        };
        tracing::warn!(category = error.category(), %error, "the record can't be used");
        let message = match &error {
            StoreError::Unavailable(_) => "The database is not available".to_owned(),
            StoreError::Closed => "The server is stopping".to_owned(),
            schema => schema.to_string(),
        };
        Self::new(code, message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = if self.fields.is_empty() {
            let code = Some(self.code.as_str().to_owned());
            Json(Problem { detail: self.message, error_id: code.clone(), error_type: code }).into_response()
        } else {
            Json(json!({ "detail": self.fields })).into_response()
        };
        let mut response = (self.status, body).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Answer to a path that does not exist.
pub async fn unknown_path() -> ApiError {
    ApiError::not_found("Not Found")
}

/// Answer to a method that a path does not have.
pub async fn wrong_method() -> ApiError {
    ApiError::method_not_allowed()
}

/// Answer after a panic in a handler.
#[must_use]
pub fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let cause = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned());
    ApiError::internal("Panic", &cause).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_database_is_never_a_404_and_never_shows_its_cause() {
        let error = ApiError::from(StoreError::Unavailable("/data/cadre.db: disk I/O error".into()));
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!error.message().contains("/data"));
        assert_eq!(error.into_response().headers()[header::RETRY_AFTER], "1");
        let corrupt = ApiError::from(StoreError::Corrupt("row 7".into()));
        assert_eq!(corrupt.message(), "Internal server error (StoreError)");
    }

    #[test]
    fn schema_errors_have_the_codes_that_clients_know() {
        let stale = ApiError::from(StoreError::MigrationRequired { found: 1, wanted: 2 });
        assert_eq!((stale.status().as_u16(), stale.code.as_str()), (503, "migration_required_error"));
        let newer = ApiError::from(StoreError::SchemaTooNew { found: 3, wanted: 2 });
        assert_eq!(newer.code.as_str(), "schema_mismatch_error");
    }
}
