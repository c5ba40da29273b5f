//! Extractors that answer in the API's own error shape.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{ApiError, FieldError};
use super::fields::Fields;
use crate::auth::actor::{Actor, Denied};

impl<S: Sync> FromRequestParts<S> for Actor {
    type Rejection = ApiError;

    /// The middleware of the port has put the actor there; a route that it was forgotten on lets nobody in.
    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Denied::Missing.into())
    }
}

/// Path parameters. What can't be one is simply not there.
#[derive(Debug)]
pub struct ApiPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for ApiPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        // No database holds a NUL in a text, so nothing can be called so.
        if parts.uri.path().contains("%00") {
            return Err(ApiError::not_found("Not Found"));
        }
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(_) => Err(ApiError::not_found("Not Found")),
        }
    }
}

/// The query.
#[derive(Debug)]
pub struct ApiQuery(pub Fields);

impl<S: Sync> FromRequestParts<S> for ApiQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        match Query::<Vec<(String, String)>>::try_from_uri(&parts.uri) {
            Ok(Query(pairs)) if pairs.iter().any(|(_, value)| value.contains('\0')) => {
                Err(ApiError::bad_request("The query holds a NUL character"))
            }
            Ok(Query(pairs)) => Ok(Self(Fields::of_query(pairs))),
            Err(_) => Err(ApiError::bad_request("The query is malformed")),
        }
    }
}

/// A JSON body.
#[derive(Debug)]
pub struct ApiJson<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = read_body(request, state).await?;
        if bytes.is_empty() {
            return Err(body_error("missing", "Field required", Value::Null));
        }
        parse_json(&bytes).map(Self)
    }
}

/// A JSON body that may be missing.
#[derive(Debug)]
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = read_body(request, state).await?;
        if bytes.is_empty() { Ok(Self(T::default())) } else { parse_json(&bytes).map(Self) }
    }
}

fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // A list would be taken for an object's values in order.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(body_error("value_error", "The body is not what is expected: it is a list", Value::Null));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let kind = if error.is_data() { "value_error" } else { "json_invalid" };
        body_error(kind, &format!("The body is not what is expected: {error}"), Value::Null)
    })
}

/// All bytes of a body, within the limit of its route.
///
/// # Errors
/// 413 over the limit, 400 when the client breaks off.
pub async fn read_body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    Bytes::from_request(request, state).await.map_err(|rejection| body_rejected(rejection.status()))
}

/// The answer to a body that could not be read.
#[must_use]
pub fn body_rejected(status: http::StatusCode) -> ApiError {
    use cadre_protocol::problem::ErrorCode;
    if status == http::StatusCode::PAYLOAD_TOO_LARGE {
        ApiError::new(ErrorCode::TooLarge, "The request body is too large")
    } else {
        ApiError::bad_request("There was an error parsing the body")
    }
}

fn body_error(kind: &'static str, message: &str, input: Value) -> ApiError {
    let loc = vec!["body".to_owned()];
    ApiError::validation(vec![FieldError { kind, loc, msg: message.to_owned(), input, ctx: None }])
}
