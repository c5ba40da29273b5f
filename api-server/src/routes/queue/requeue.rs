//! `POST /queue/jobs/{job_id}/requeue`.

use axum::Json;
use axum::extract::State;
use cadre_protocol::ids::RunId;

use super::{admins_only, jobs};
use crate::auth::actor::Actor;
use crate::domain::DomainError;
use crate::domain::jobs::Requeue;
use crate::render::job::{QueueJob, job};
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::responses::{Busy, Conflicts, Errors};
use crate::routes::state::UserState;

/// Run a job once more that has failed or was cancelled.
///
/// The same run goes on from its journal, for one attempt: finished tool calls are not run again. 400 for other jobs, 409 for
/// one that failed in the last minute. A cancel stands for a day: without `clear_cancellation` such a job stays as it is.
#[utoipa::path(
    post, path = "/queue/jobs/{job_id}/requeue", tag = "Queue", operation_id = "requeue_queue_job",
    params(
        ("job_id" = String, Path, description = "The run's id"),
        ("clear_cancellation" = Option<bool>, Query, description = "Also if it was cancelled"),
        ("force" = Option<bool>, Query, description = "Also if it failed a moment ago"),
    ),
    responses((status = 200, description = "The job", body = QueueJob), Errors, Conflicts, Busy),
)]
pub async fn requeue(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(job_id): ApiPath<String>,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<QueueJob>, ApiError> {
    admins_only(&actor)?;
    let clear_cancellation = query.boolean("clear_cancellation", false);
    let force = query.boolean("force", false);
    query.finish()?;
    let run_id = RunId::new(job_id.as_str()).map_err(|_| jobs::not_found(&job_id))?;
    match state.service.requeue(&run_id, Requeue { clear_cancellation, force }).await {
        Ok(row) => Ok(Json(job(row, state.service.default_namespace()))),
        Err(DomainError::RunNotFound(_)) => Err(jobs::not_found(&job_id)),
        Err(error) => Err(error.into()),
    }
}
