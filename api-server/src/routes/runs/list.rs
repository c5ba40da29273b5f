//! `GET /agents/{agent_id}/runs`.

use axum::Json;
use axum::extract::State;
use cadre_protocol::ids::SessionId;
use cadre_protocol::run::RunStatus;
use cadre_store::rows::sessions::SessionRuns;

use crate::auth::actor::Actor;
use crate::render::run::{RunSchema, schema};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// An agent's runs in a session, oldest first.
///
/// A status that does not exist matches nothing. Of very many runs, or very large ones, the newest.
#[utoipa::path(
    get, path = "/agents/{agent_id}/runs", tag = "Runs", operation_id = "list_agent_runs",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("session_id" = String, Query, description = "Session"),
        ("status" = Option<String>, Query, description = "Only runs that stand so"),
    ),
    responses((status = 200, description = "The runs", body = Vec<RunSchema>), Errors),
)]
pub async fn list(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(agent_id): ApiPath<String>,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<Vec<RunSchema>>, ApiError> {
    let session_id = query.required("session_id");
    let status = query.text("status").map(|text| RunStatus::parse(&text.to_ascii_uppercase()));
    query.finish()?;
    let id = SessionId::new(&*session_id).map_err(|_| ApiError::session_not_found(&session_id))?;
    let session = state.service.session(&id, actor.scope()).await?;
    let component = state.service.component(&agent_id);
    if session.component.as_ref() != Some(&component) && state.service.agent(&component).is_none() {
        return Err(ApiError::not_found("Agent not found"));
    }
    if status == Some(None) {
        return Ok(Json(Vec::new()));
    }
    let of = SessionRuns {
        principal: actor.scope().cloned(),
        component: Some(component),
        statuses: status.flatten().into_iter().collect(),
        ..SessionRuns::of(id)
    };
    let details = state.service.session_details(of).await?;
    Ok(Json(details.into_iter().map(schema).collect()))
}
