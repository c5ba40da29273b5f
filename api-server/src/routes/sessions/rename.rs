//! `POST /sessions/{session_id}/rename`.

use axum::Json;
use axum::extract::State;
use cadre_store::rows::sessions::SessionEdit;
use serde::Deserialize;
use utoipa::ToSchema;

use super::find::{Narrow, NarrowQuery};
use super::{get, values};
use crate::auth::actor::Actor;
use crate::render::session::SessionDetail;
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiJson, ApiPath, ApiQuery};
use crate::routes::fields::Fields;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// A new name.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RenameSession {
    /// The name.
    #[schema(min_length = 1, max_length = 255)]
    session_name: String,
}

/// Name a session.
#[utoipa::path(
    post, path = "/sessions/{session_id}/rename", tag = "Sessions", operation_id = "rename_session",
    params(("session_id" = String, Path, description = "Session"), NarrowQuery),
    request_body = RenameSession,
    responses((status = 200, description = "The session", body = SessionDetail), Errors),
)]
pub async fn rename(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(session_id): ApiPath<String>,
    ApiQuery(mut query): ApiQuery,
    ApiJson(RenameSession { session_name }): ApiJson<RenameSession>,
) -> Result<Json<SessionDetail>, ApiError> {
    let narrow = Narrow::read(&mut query);
    query.finish()?;
    let mut body = Fields::of_body(Vec::new());
    values::check_name(&mut body, &session_name);
    body.finish()?;
    let session = narrow.find(&state.service, &actor, &session_id).await?;
    let edit = SessionEdit { name: Some(session_name), ..SessionEdit::default() };
    let session = state.service.edit_session(&session.session_id, actor.scope(), edit).await?;
    Ok(Json(get::with_runs(&state.service, &actor, session).await?))
}
