//! `GET /sessions/{session_id}/runs/{run_id}`.

use axum::Json;
use axum::extract::State;

use super::find::{Narrow, NarrowQuery};
use crate::auth::actor::Actor;
use crate::render::run::{RunSchema, schema};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::runs::lookup;
use crate::routes::state::UserState;

/// A run of a session.
#[utoipa::path(
    get, path = "/sessions/{session_id}/runs/{run_id}", tag = "Sessions", operation_id = "get_session_run",
    params(
        ("session_id" = String, Path, description = "Session"),
        ("run_id" = String, Path, description = "Run"),
        NarrowQuery,
    ),
    responses((status = 200, description = "The run", body = RunSchema), Errors),
)]
pub async fn run(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath((session_id, run_id)): ApiPath<(String, String)>,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<RunSchema>, ApiError> {
    let narrow = Narrow::read(&mut query);
    query.finish()?;
    let detail = lookup::detail_in_session(&state.service, &actor, &run_id, &session_id).await?;
    narrow.find(&state.service, &actor, &session_id).await?;
    Ok(Json(schema(detail)))
}
