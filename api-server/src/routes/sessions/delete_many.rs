//! `DELETE /sessions`.

use axum::extract::State;
use cadre_protocol::ids::SessionId;
use http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::delete;
use crate::auth::actor::Actor;
use crate::domain::DomainError;
use crate::routes::error::ApiError;
use crate::routes::extract::ApiJson;
use crate::routes::responses::{Conflicts, Errors};
use crate::routes::state::UserState;

/// Which sessions to delete.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DeleteSessions {
    /// Their ids.
    #[schema(min_items = 1, max_items = 1000)]
    session_ids: Vec<String>,
    /// Their kinds, in the same order.
    #[schema(min_items = 1)]
    session_types: Vec<SessionType>,
}

/// Kind of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionType {
    /// Begun by an agent's run.
    Agent,
    /// Begun by a team's run.
    Team,
    /// Begun by a workflow's run.
    Workflow,
}

/// Delete several sessions with their runs.
///
/// Sessions that do not exist are no error. 409 names those that stay because one of their runs has not ended; the others
/// are gone.
#[utoipa::path(
    delete, path = "/sessions", tag = "Sessions", operation_id = "delete_sessions",
    request_body = DeleteSessions,
    responses((status = 204, description = "They are gone"), Errors, Conflicts),
)]
pub async fn delete_many(
    State(state): State<UserState>,
    actor: Actor,
    ApiJson(DeleteSessions { session_ids, session_types }): ApiJson<DeleteSessions>,
) -> Result<StatusCode, ApiError> {
    if session_ids.is_empty() || session_ids.len() > 1000 || session_ids.len() != session_types.len() {
        return Err(ApiError::bad_request("session_ids and session_types need the same number of entries, 1 to 1000"));
    }
    // All sessions are of agents: those named as another kind do not exist.
    let agents = session_ids.into_iter().zip(session_types).filter(|(_, kind)| *kind == SessionType::Agent);
    let ids: Vec<SessionId> = agents.filter_map(|(id, _)| SessionId::new(id).ok()).collect();
    let deleted = state.service.delete_sessions(&ids, actor.scope()).await?;
    let mut stayed = Vec::new();
    for id in ids.iter().filter(|id| !deleted.contains(id)) {
        match state.service.session(id, actor.scope()).await {
            Ok(_) => stayed.push(id.to_string()),
            Err(DomainError::SessionNotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if stayed.is_empty() { Ok(StatusCode::NO_CONTENT) } else { Err(delete::busy(&stayed)) }
}
