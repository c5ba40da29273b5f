//! `GET /sessions/{session_id}/runs`.

use axum::Json;
use axum::extract::State;

use super::find::NarrowQuery;
use super::select;
use crate::auth::actor::Actor;
use crate::render::run::{RunSchema, schema};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// A session's runs, oldest first.
///
/// At most 1,000 and about 16 MiB, the newest: `created_before` shows those before them.
#[utoipa::path(
    get, path = "/sessions/{session_id}/runs", tag = "Sessions", operation_id = "list_session_runs",
    params(
        ("session_id" = String, Path, description = "Session"),
        NarrowQuery,
        ("created_after" = Option<i64>, Query, description = "Unix seconds"),
        ("created_before" = Option<i64>, Query, description = "Unix seconds"),
        ("status" = Option<Vec<String>>, Query, description = "Only runs that stand so; any of several"),
    ),
    responses((status = 200, description = "The runs", body = Vec<RunSchema>), Errors),
)]
pub async fn runs(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(session_id): ApiPath<String>,
    ApiQuery(query): ApiQuery,
) -> Result<Json<Vec<RunSchema>>, ApiError> {
    let wanted = select::runs(&state.service, &actor, &session_id, query).await?;
    let details = match wanted {
        Some(of) => state.service.session_details(of).await?,
        None => Vec::new(),
    };
    Ok(Json(details.into_iter().map(schema).collect()))
}
