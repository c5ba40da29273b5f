//! `POST /agents/{agent_id}/sessions/{session_id}/fork`.

use axum::Json;
use axum::extract::State;
use cadre_protocol::ids::SessionId;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::actor::Actor;
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::{Busy, Errors};
use crate::routes::runs::request;
use crate::routes::state::UserState;

/// A copy of a session.
#[derive(Debug, Serialize, ToSchema)]
pub struct ForkedSession {
    /// The copy.
    session_id: String,
    /// The session that it is a copy of.
    forked_from_session_id: String,
}

/// Copy a session.
///
/// All runs that have ended with their messages and tool calls, files and state, under new ids; the source stays as it is.
/// Streams stay with the source. At most 10,000 runs and 64 MiB.
#[utoipa::path(
    post, path = "/agents/{agent_id}/sessions/{session_id}/fork", tag = "Sessions", operation_id = "fork_agent_session",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("session_id" = String, Path, description = "Session"),
        ("user_id" = Option<String>, Query, description = "The user on whose behalf the caller asks; the source's when absent"),
    ),
    responses((status = 200, description = "The copy", body = ForkedSession), Errors, Busy),
)]
pub async fn fork(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath((agent_id, session_id)): ApiPath<(String, String)>,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<ForkedSession>, ApiError> {
    let user_id = request::user_id(&mut query);
    query.finish()?;
    let component = state.service.component(&agent_id);
    if state.service.agent(&component).is_none() {
        return Err(ApiError::not_found("Agent not found"));
    }
    let source = SessionId::new(&*session_id).map_err(|_| ApiError::session_not_found(&session_id))?;
    let copy = state.service.fork_session(&source, &component, actor.scope(), user_id).await?;
    Ok(Json(ForkedSession { session_id: copy.into(), forked_from_session_id: session_id }))
}
