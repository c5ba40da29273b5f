//! `POST /sessions/{session_id}/rename`.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::get;
use crate::auth::actor::Actor;
use crate::render::session::SessionDetail;
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiJson, ApiPath};
use crate::routes::fields::Fields;
use crate::routes::responses::Errors;
use crate::routes::runs::lookup;
use crate::routes::state::UserState;

/// A new name.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RenameSession {
    /// The name.
    #[schema(min_length = 1, max_length = 255)]
    session_name: String,
}

/// Longest name, in characters.
const MAX_NAME_CHARS: usize = 255;

/// Name a session.
#[utoipa::path(
    post, path = "/sessions/{session_id}/rename", tag = "Sessions", operation_id = "rename_session",
    params(("session_id" = String, Path, description = "Session")),
    request_body = RenameSession,
    responses((status = 200, description = "The session", body = SessionDetail), Errors),
)]
pub async fn rename(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(session_id): ApiPath<String>,
    ApiJson(RenameSession { session_name }): ApiJson<RenameSession>,
) -> Result<Json<SessionDetail>, ApiError> {
    if session_name.trim().is_empty() || session_name.chars().count() > MAX_NAME_CHARS {
        let mut body = Fields::of_body(Vec::new());
        let message = format!("Value error, a name has 1 to {MAX_NAME_CHARS} characters");
        body.fail("value_error", "session_name", &message, session_name.into(), None);
        body.finish()?;
        return Err(ApiError::bad_request(message));
    }
    let id = lookup::session_of(&state.service, &actor, &session_id).await?;
    let session = state.service.rename(&id, actor.scope(), &session_name).await?;
    Ok(Json(get::with_runs(&state.service, &actor, session).await?))
}
