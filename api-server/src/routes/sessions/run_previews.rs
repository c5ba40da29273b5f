//! `GET /sessions/{session_id}/run-previews`.

use axum::Json;
use axum::extract::State;
use cadre_store::rows::sessions::SessionRuns;

use super::find::NarrowQuery;
use super::select;
use crate::auth::actor::Actor;
use crate::render::run::{RunPreview, preview};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// Most runs of the list.
const MAX_PREVIEWS: usize = 10_000;

/// A session's runs in short, oldest first.
///
/// Texts are cut after 280 characters. At most 10,000 runs, the newest.
#[utoipa::path(
    get, path = "/sessions/{session_id}/run-previews", tag = "Sessions", operation_id = "list_session_run_previews",
    params(
        ("session_id" = String, Path, description = "Session"),
        NarrowQuery,
        ("created_after" = Option<i64>, Query, description = "Unix seconds"),
        ("created_before" = Option<i64>, Query, description = "Unix seconds"),
        ("status" = Option<Vec<String>>, Query, description = "Only runs that stand so; any of several"),
    ),
    responses((status = 200, description = "The runs", body = Vec<RunPreview>), Errors),
)]
pub async fn run_previews(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(session_id): ApiPath<String>,
    ApiQuery(query): ApiQuery,
) -> Result<Json<Vec<RunPreview>>, ApiError> {
    let mut wanted = select::runs(&state.service, &actor, &session_id, query).await?;
    let namespace = state.service.default_namespace();
    let mut previews = Vec::new();
    while let Some(of) = wanted.take() {
        let page = state.service.session_runs(of.clone()).await?;
        previews.extend(page.runs.iter().map(|run| preview(run, run.component.api_id(namespace))));
        let more = page.before.filter(|_| previews.len() < MAX_PREVIEWS);
        wanted = more.map(|before| SessionRuns { before: Some(before), ..of });
    }
    previews.truncate(MAX_PREVIEWS);
    previews.reverse();
    Ok(Json(previews))
}
