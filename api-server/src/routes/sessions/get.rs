//! `GET /sessions/{session_id}`.

use axum::Json;
use axum::extract::State;
use cadre_store::rows::{RunFilter, SessionRow};

use super::find::{Narrow, NarrowQuery};
use crate::auth::actor::Actor;
use crate::domain::{DomainError, Service};
use crate::render::session::{SessionDetail, detail};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::runs::lookup;
use crate::routes::state::UserState;

/// A session with its conversation.
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
    let filter = RunFilter {
        principal: actor.scope().cloned(),
        session_id: Some(session.session_id.clone()),
        ..RunFilter::default()
    };
    let runs = lookup::all_runs(service, filter).await?;
    let runs = lookup::details(service, actor, runs).await?;
    Ok(detail(session, runs, service.default_namespace()))
}
