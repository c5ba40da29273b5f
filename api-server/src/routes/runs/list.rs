//! `GET /agents/{agent_id}/runs`.

use axum::Json;
use axum::extract::State;
use cadre_protocol::run::RunStatus;
use cadre_store::rows::RunFilter;

use super::lookup;
use crate::auth::actor::Actor;
use crate::render::run::{RunSchema, schema};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// An agent's runs in a session, oldest first.
///
/// A status that does not exist matches nothing.
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
    let session_id = lookup::session_of(&state.service, &actor, &session_id).await?;
    if status == Some(None) {
        return Ok(Json(Vec::new()));
    }
    let filter = RunFilter {
        principal: actor.scope().cloned(),
        component: Some(state.service.component(&agent_id)),
        session_id: Some(session_id),
        status: status.flatten(),
        ..RunFilter::default()
    };
    let runs = lookup::all_runs(&state.service, filter).await?;
    let details = lookup::details(&state.service, &actor, runs).await?;
    Ok(Json(details.into_iter().map(schema).collect()))
}
