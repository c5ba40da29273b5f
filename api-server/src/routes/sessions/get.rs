//! `GET /sessions/{session_id}`.

use axum::Json;
use axum::extract::State;
use cadre_store::rows::SessionRow;
use cadre_store::rows::sessions::SessionRuns;

use super::find::{Narrow, NarrowQuery};
use crate::auth::actor::Actor;
use crate::domain::{DomainError, Service};
use crate::render::session::{SessionDetail, detail};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// A session with its conversation.
///
/// Of a very long conversation the newest part: at most 1,000 runs and about 16 MiB. Tokens and cost are of all runs.
#[utoipa::path(
    get, path = "/sessions/{session_id}", tag = "Sessions", operation_id = "get_session",
    params(("session_id" = String, Path, description = "Session"), NarrowQuery),
    responses((status = 200, description = "The session", body = SessionDetail), Errors),
)]
pub async fn get(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(session_id): ApiPath<String>,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<SessionDetail>, ApiError> {
    let narrow = Narrow::read(&mut query);
    query.finish()?;
    let session = narrow.find(&state.service, &actor, &session_id).await?;
    Ok(Json(with_runs(&state.service, &actor, session).await?))
}

/// The session with its conversation, as several routes answer it.
///
/// # Errors
/// The record's.
pub async fn with_runs(service: &Service, actor: &Actor, session: SessionRow) -> Result<SessionDetail, DomainError> {
    let all = SessionRuns::of(session.session_id.clone());
    let of = SessionRuns { principal: actor.scope().cloned(), with_state: false, ..all };
    let runs = service.session_details(of).await?;
    let total = service.session_metrics(&session.session_id).await?;
    Ok(detail(session, runs, &total, service.default_namespace()))
}
