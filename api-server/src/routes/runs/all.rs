//! `GET /runs` and `GET /runs/{run_id}`: runs of all agents. Ours: AgentOS's clients must know the session.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use cadre_protocol::ids::{RunId, SessionId};
use cadre_protocol::run::RunStatus;
use cadre_store::rows::{RunFilter, RunRow};
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::actor::Actor;
use crate::render::metrics::{self, Metrics};
use crate::render::page::{Page, PageMeta};
use crate::render::run::{RunPreview, preview};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// Most rows of a page.
const MAX_LIMIT: u64 = 1000;

/// A run in brief, and where it belongs.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunSummary {
    /// The same as in a session's list.
    #[serde(flatten)]
    pub preview: RunPreview,
    /// Session.
    pub session_id: String,
    /// Namespace of the agent.
    pub namespace: String,
    /// Tokens, cost and times.
    pub metrics: Metrics,
}

fn summary(run: &RunRow, default_namespace: &str) -> RunSummary {
    RunSummary {
        preview: preview(run, run.component.api_id(default_namespace)),
        session_id: run.session_id.to_string(),
        namespace: run.component.namespace.clone(),
        metrics: metrics::plain(&run.metrics),
    }
}

/// Runs, newest first.
#[utoipa::path(
    get, path = "/runs", tag = "Runs", operation_id = "list_runs",
    params(
        ("agent_id" = Option<String>, Query, description = "Only runs of this agent"),
        ("session_id" = Option<String>, Query, description = "Only runs of this session"),
        ("status" = Option<String>, Query, description = "Only runs that stand so"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Most rows of a page; 20 if absent, never over 1,000"),
        ("page" = Option<u64>, Query, minimum = 1, description = "From 1"),
    ),
    responses((status = 200, description = "A page of them", body = Page<RunSummary>), Errors),
)]
pub async fn all(
    State(state): State<UserState>,
    actor: Actor,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<Page<RunSummary>>, ApiError> {
    let begun = Instant::now();
    let page = query.integer_from("page", 1, 1);
    let limit = query.integer_from("limit", 1, 20).min(MAX_LIMIT);
    let status = query.text("status").map(|text| RunStatus::parse(&text.to_ascii_uppercase()));
    let session_id = query.text("session_id").map(SessionId::new);
    let component = query.text("agent_id").map(|id| state.service.component(id));
    query.finish()?;
    // What no run can have matches nothing.
    let (Ok(status), Ok(session_id)) = (status.map(|found| found.ok_or(())).transpose(), session_id.transpose()) else {
        return Ok(Json(Page { data: Vec::new(), meta: PageMeta::new(page, limit, 0, begun.elapsed()) }));
    };
    let filter = RunFilter {
        principal: actor.scope().cloned(),
        component,
        session_id,
        status,
        offset: (page - 1).saturating_mul(limit),
        limit,
        ..RunFilter::default()
    };
    let (runs, total) = state.service.list(filter).await?;
    let namespace = state.service.default_namespace();
    let data = runs.iter().map(|run| summary(run, namespace)).collect();
    Ok(Json(Page { data, meta: PageMeta::new(page, limit, total, begun.elapsed()) }))
}

/// A run in brief, by its id alone.
#[utoipa::path(
    get, path = "/runs/{run_id}", tag = "Runs", operation_id = "find_run",
    params(("run_id" = String, Path, description = "Run")),
    responses((status = 200, description = "The run", body = RunSummary), Errors),
)]
pub async fn find(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(run_id): ApiPath<String>,
) -> Result<Json<RunSummary>, ApiError> {
    let run_id = RunId::new(run_id).map_err(|_| ApiError::run_not_found())?;
    let run = state.service.run(&run_id, actor.scope()).await?;
    Ok(Json(summary(&run, state.service.default_namespace())))
}
