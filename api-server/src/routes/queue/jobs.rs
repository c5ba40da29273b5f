//! `GET /queue/jobs` and `GET /queue/jobs/{job_id}`.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use cadre_protocol::ids::{RunId, SessionId};
use cadre_store::rows::jobs::{JobFilter, JobOrder};
use serde_json::json;

use super::admins_only;
use crate::auth::actor::Actor;
use crate::domain::DomainError;
use crate::render::job::{QueueJob, job, statuses};
use crate::render::page::{Page, PageMeta};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::fields::Fields;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// Most rows of a page.
const MAX_LIMIT: u64 = 1000;
/// Most sessions that a list can be narrowed to.
const MAX_SESSIONS: usize = 100;

/// Jobs of the queue: runs, whatever has become of them, newest first.
#[utoipa::path(
    get, path = "/queue/jobs", tag = "Queue", operation_id = "list_queue_jobs",
    params(
        ("status" = Option<Vec<String>>, Query, description =
            "`queued`, `running`, `paused`, `completed`, `failed` or `cancelled`; any of several"),
        ("session_id" = Option<Vec<String>>, Query, description = "Only jobs of this session; any of several, at most 100"),
        ("user_id" = Option<String>, Query, description = "Only jobs of this user"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "Most rows of a page; 20 if absent"),
        ("page" = Option<u64>, Query, minimum = 1, description = "From 1"),
        ("sort_by" = Option<String>, Query, description = "`created_at` (if absent), `updated_at` or `completed_at`"),
        ("sort_order" = Option<String>, Query, description = "`desc` (if absent) or `asc`"),
    ),
    responses((status = 200, description = "A page of them", body = Page<QueueJob>), Errors),
)]
pub async fn list(
    State(state): State<UserState>,
    actor: Actor,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<Page<QueueJob>>, ApiError> {
    admins_only(&actor)?;
    let begun = Instant::now();
    let page = query.integer_from("page", 1, 1);
    let limit = query.integer_from("limit", 1, 20);
    if limit > MAX_LIMIT {
        let message = format!("Input should be less than or equal to {MAX_LIMIT}");
        query.fail("less_than_equal", "limit", &message, limit.to_string().into(), Some(json!({ "le": MAX_LIMIT })));
    }
    // Other fields are no error there: clients sort by what they show.
    let order = match query.text("sort_by") {
        Some("updated_at" | "completed_at") => JobOrder::Updated,
        _ => JobOrder::Created,
    };
    let ascending = query.one_of("sort_order", &["asc", "desc"]) == Some("asc");
    if values(&query, "user_id").any(str::is_empty) {
        return Err(ApiError::bad_request("session_id and user_id must not be empty"));
    }
    let user_id = query.text("user_id").map(str::to_owned);
    let statuses = wanted_statuses(&query)?;
    let session_ids = wanted_sessions(&query)?;
    query.finish()?;
    let offset = (page - 1).saturating_mul(limit);
    let filter = JobFilter { statuses, session_ids, user_id, order, ascending, offset, limit };
    let (rows, total) = state.service.jobs(filter).await?;
    let namespace = state.service.default_namespace();
    let data = rows.into_iter().map(|row| job(row, namespace)).collect();
    Ok(Json(Page { data, meta: PageMeta::new(page, limit, total, begun.elapsed()) }))
}

/// A job of the queue.
#[utoipa::path(
    get, path = "/queue/jobs/{job_id}", tag = "Queue", operation_id = "get_queue_job",
    params(("job_id" = String, Path, description = "The run's id")),
    responses((status = 200, description = "The job", body = QueueJob), Errors),
)]
pub async fn get(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(job_id): ApiPath<String>,
) -> Result<Json<QueueJob>, ApiError> {
    admins_only(&actor)?;
    let run_id = RunId::new(job_id.as_str()).map_err(|_| not_found(&job_id))?;
    match state.service.job(&run_id).await {
        Ok(row) => Ok(Json(job(row, state.service.default_namespace()))),
        Err(DomainError::RunNotFound(_)) => Err(not_found(&job_id)),
        Err(error) => Err(error.into()),
    }
}

/// 404 for a job.
#[must_use]
pub fn not_found(job_id: &str) -> ApiError {
    ApiError::not_found(format!("Job queue job {job_id} not found"))
}

fn values<'a>(query: &'a Fields, name: &'a str) -> impl Iterator<Item = &'a str> {
    query.pairs().iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn wanted_statuses(query: &Fields) -> Result<Vec<cadre_protocol::run::RunStatus>, ApiError> {
    let mut wanted = Vec::new();
    for state in values(query, "status") {
        let found = statuses(state);
        if found.is_empty() {
            return Err(ApiError::bad_request(
                "Invalid status; expected queued, running, paused, completed, failed or cancelled",
            ));
        }
        wanted.extend(found.iter().filter(|status| !wanted.contains(*status)).copied().collect::<Vec<_>>());
    }
    Ok(wanted)
}

fn wanted_sessions(query: &Fields) -> Result<Vec<SessionId>, ApiError> {
    let wanted = values(query, "session_id").map(SessionId::new).collect::<Result<Vec<_>, _>>();
    let wanted = wanted.map_err(|invalid| ApiError::bad_request(format!("Invalid session_id; the {invalid}")))?;
    if wanted.len() > MAX_SESSIONS {
        return Err(ApiError::bad_request(format!("At most {MAX_SESSIONS} values of session_id")));
    }
    Ok(wanted)
}
