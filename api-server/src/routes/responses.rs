//! The error answers of the OpenAPI document.

use serde::Serialize;
use serde_json::Value;
use utoipa::{IntoResponses, ToSchema};

/// Body of an error.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    /// For people.
    pub detail: String,
    /// Stable code.
    pub error_id: Option<String>,
    /// Kind of error.
    pub error_type: Option<String>,
}

/// Body of an error about fields.
#[derive(Serialize, ToSchema)]
pub struct ValidationErrorBody {
    /// All wrong fields.
    pub detail: Vec<ValidationItem>,
}

/// A wrong field.
#[derive(Serialize, ToSchema)]
pub struct ValidationItem {
    /// Stable kind, for example `missing`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `body`, `query` or `header`, then the field's name.
    pub loc: Vec<String>,
    /// For people.
    pub msg: String,
    /// What was sent.
    #[schema(value_type = Value)]
    pub input: Value,
    /// Limits that the message speaks of.
    #[schema(value_type = Option<Object>)]
    pub ctx: Option<Value>,
}

/// An event of a stream, as the OpenAPI document describes it.
#[derive(Serialize, ToSchema)]
pub struct ServerSentEvent {
    /// Number of the event in its run; absent for frames that only tell where a stream stands.
    pub id: Option<String>,
    /// Kind of event.
    pub event: String,
    /// JSON.
    pub data: String,
}

/// What every route may answer.
#[derive(IntoResponses)]
pub enum PublicErrors {
    /// In local mode: a page of another origin sent the request.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// A fault of the server, which has logged it.
    #[response(status = 500)]
    Internal(ErrorBody),
}

/// What every route that needs a credential may answer.
#[derive(IntoResponses)]
pub enum Errors {
    /// Malformed.
    #[response(status = 400)]
    BadRequest(ErrorBody),
    /// No or a wrong credential.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// Not allowed, or in local mode: a page of another origin sent the request.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// Absent, or not the caller's.
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// The request body is too large.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// Fields are missing or wrong.
    #[response(status = 422)]
    Validation(ValidationErrorBody),
    /// A fault of the server, which has logged it.
    #[response(status = 500)]
    Internal(ErrorBody),
    /// The database is away or of another version, the agent is not ready or the server stops; `Retry-After` says when
    /// to try again.
    #[response(status = 503)]
    Unavailable(ErrorBody),
}

/// What contradicts what is there.
#[derive(IntoResponses)]
pub enum Conflicts {
    /// The run id is taken, the idempotency key was used for something else, or something is busy.
    #[response(status = 409)]
    Conflict(ErrorBody),
}

/// What a full queue answers.
#[derive(IntoResponses)]
pub enum Busy {
    /// Too many runs wait, or the agent's namespace has its share of waiting runs, open streams or stored files; nothing
    /// was accepted. `Retry-After` says when to try again.
    #[response(status = 429)]
    QueueFull(ErrorBody),
}
