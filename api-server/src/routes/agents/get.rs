//! `GET /agents/{agent_id}`.

use axum::Json;
use axum::extract::State;

use crate::auth::actor::Actor;
use crate::render::agent::{AgentResponse, response};
use crate::routes::error::ApiError;
use crate::routes::extract::ApiPath;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// An agent.
#[utoipa::path(
    get, path = "/agents/{agent_id}", tag = "Agents", operation_id = "get_agent",
    params(("agent_id" = String, Path, description = "`name`, or `namespace.name`")),
    responses((status = 200, description = "The agent", body = AgentResponse), Errors),
)]
pub async fn get(
    State(state): State<UserState>,
    _actor: Actor,
    ApiPath(agent_id): ApiPath<String>,
) -> Result<Json<AgentResponse>, ApiError> {
    let agent = state.service.agent(&state.service.component(&agent_id));
    agent.as_ref().map(response).map(Json).ok_or_else(|| ApiError::not_found("Agent not found"))
}
