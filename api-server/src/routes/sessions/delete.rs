//! `DELETE /sessions/{session_id}`.

use axum::extract::State;
use cadre_protocol::problem::ErrorCode;
use http::StatusCode;

use super::find::{Narrow, NarrowQuery};
use crate::auth::actor::Actor;
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::{Conflicts, Errors};
use crate::routes::state::UserState;

/// Delete a session with its runs.
///
/// 409 while one of its runs has not ended.
#[utoipa::path(
    delete, path = "/sessions/{session_id}", tag = "Sessions", operation_id = "delete_session",
    params(("session_id" = String, Path, description = "Session"), NarrowQuery),
    responses((status = 204, description = "It is gone"), Errors, Conflicts),
)]
pub async fn delete(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(session_id): ApiPath<String>,
    ApiQuery(mut query): ApiQuery,
) -> Result<StatusCode, ApiError> {
    let narrow = Narrow::read(&mut query);
    query.finish()?;
    let session = narrow.find(&state.service, &actor, &session_id).await?;
    let deleted = state.service.delete_sessions(&[session.session_id], actor.scope()).await?;
    if deleted.is_empty() { Err(busy(&[session_id])) } else { Ok(StatusCode::NO_CONTENT) }
}

/// The answer when sessions stay because their runs have not ended.
#[must_use]
pub fn busy(session_ids: &[String]) -> ApiError {
    let named = session_ids.iter().take(10).map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ");
    let message = format!("{} session(s) have a run that has not ended: {named}. Cancel it first.", session_ids.len());
    ApiError::new(ErrorCode::SessionBusy, message)
}
