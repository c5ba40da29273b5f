//! `POST /agents/{agent_id}/runs/{run_id}/cancel`.

use axum::Json;
use axum::extract::State;
use cadre_protocol::ids::RunId;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::lookup;
use crate::auth::actor::Actor;
use crate::domain::Service;
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// Where a run stands after a cancel; empty when there is no such run.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Cancelled {
    /// Run.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    /// `CANCELLED`; what it was if it had ended before; `RUNNING` until its worker obeys.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// When the cancel reached it: `PENDING`, `EXECUTING` or `PAUSED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancellation_stage: Option<String>,
}

/// Cancel a run.
///
/// Answers 200 for runs that have ended or do not exist too, as AgentOS does. Ended ones stay as they are; a cancel of one
/// that does not exist is remembered for a day, and a run that begins with this `run_id` ends as CANCELLED. With
/// `strict=true` a run that does not exist is 404, and nothing is remembered.
#[utoipa::path(
    post, path = "/agents/{agent_id}/runs/{run_id}/cancel", tag = "Runs", operation_id = "cancel_agent_run",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("run_id" = String, Path, description = "Run"),
        ("session_id" = Option<String>, Query, description = "Session of the run"),
        ("strict" = Option<bool>, Query, description = "404 for a run that does not exist"),
    ),
    responses((status = 200, description = "The cancel was noted", body = Cancelled), Errors),
)]
pub async fn cancel(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath((agent_id, run_id)): ApiPath<(String, String)>,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<Cancelled>, ApiError> {
    let strict = query.boolean("strict", false);
    let session_id = query.text("session_id").map(str::to_owned);
    query.finish()?;
    let cancel = || cancel_own(&state.service, &actor, &agent_id, &run_id, session_id.as_deref());
    let not_there = |error: &ApiError| error.status() == StatusCode::NOT_FOUND && !strict;
    match cancel().await {
        Err(error) if not_there(&error) => {}
        outcome => return outcome.map(Json),
    }
    // What can be no run's id will be none later either.
    let Ok(id) = RunId::new(run_id.as_str()) else { return Ok(Json(Cancelled::default())) };
    if state.service.cancel_later(&id, actor.scope()).await? {
        return Ok(Json(Cancelled::default()));
    }
    // It came between the two, or it is of another agent or session.
    match cancel().await {
        Err(error) if not_there(&error) => Ok(Json(Cancelled::default())),
        outcome => outcome.map(Json),
    }
}

async fn cancel_own(
    service: &Service,
    actor: &Actor,
    agent_id: &str,
    run_id: &str,
    session_id: Option<&str>,
) -> Result<Cancelled, ApiError> {
    let run = lookup::run_of(service, actor, agent_id, run_id, session_id).await?;
    let run = service.cancel(&run.run_id, actor.scope()).await?;
    Ok(Cancelled {
        run_id: Some(run.run_id.into()),
        status: Some(run.status.as_str().to_owned()),
        cancellation_stage: run.cancellation_stage,
    })
}
