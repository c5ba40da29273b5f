//! `GET /agents/{agent_id}/runs/{run_id}`.

use axum::Json;
use axum::extract::State;

use super::lookup;
use crate::auth::actor::Actor;
use crate::render::output::{RunOutput, output};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// A run.
///
/// While it is PENDING, `waiting_on` names the run of the same session that it waits for, and `waiting_for` says that it
/// waits for a slot or a sandbox of its namespace.
#[utoipa::path(
    get, path = "/agents/{agent_id}/runs/{run_id}", tag = "Runs", operation_id = "get_agent_run",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("run_id" = String, Path, description = "Run"),
        ("session_id" = String, Query, description = "Session of the run"),
    ),
    responses((status = 200, description = "The run", body = RunOutput), Errors),
)]
pub async fn get(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath((agent_id, run_id)): ApiPath<(String, String)>,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<RunOutput>, ApiError> {
    let session_id = query.required("session_id");
    query.finish()?;
    let detail = lookup::detail_in_session(&state.service, &actor, &run_id, &session_id).await?;
    if detail.run.component != state.service.component(&agent_id) {
        return Err(ApiError::run_not_found());
    }
    let waiting_for = match detail.waiting_on {
        Some(_) => None,
        None => state.service.waits_for(&detail.run).await?,
    };
    Ok(Json(RunOutput { waiting_for, ..output(detail) }))
}
