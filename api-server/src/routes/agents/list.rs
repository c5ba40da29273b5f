//! `GET /agents`.

use axum::Json;
use axum::extract::State;

use crate::auth::actor::Actor;
use crate::render::agent::{AgentResponse, response};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// All agents.
#[utoipa::path(
    get, path = "/agents", tag = "Agents", operation_id = "list_agents",
    responses((status = 200, description = "The agents", body = Vec<AgentResponse>), Errors),
)]
pub async fn list(State(state): State<UserState>, _actor: Actor) -> Json<Vec<AgentResponse>> {
    Json(state.service.agents().iter().map(response).collect())
}
