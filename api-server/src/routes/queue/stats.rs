//! `GET /queue/stats`.

use axum::Json;
use axum::extract::State;
use cadre_store::rows::QueueStats;
use serde::Serialize;
use utoipa::ToSchema;

use super::admins_only;
use crate::auth::actor::Actor;
use crate::routes::error::ApiError;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// How full the queue is.
#[derive(Debug, Serialize, ToSchema)]
pub struct QueueStatsResponse {
    /// Runs by state.
    counts: Counts,
    /// Seconds that the oldest of those that wait has waited.
    oldest_queued_age_seconds: Option<f64>,
}

/// Runs by the queue's own names of states.
#[derive(Debug, Serialize, ToSchema)]
pub struct Counts {
    /// Waiting.
    queued: u64,
    /// Under way.
    running: u64,
    /// Waiting for a person.
    paused: u64,
    /// Ended well.
    completed: u64,
    /// Ended with an error.
    failed: u64,
    /// Cancelled.
    cancelled: u64,
}

/// How full the queue is.
#[utoipa::path(
    get, path = "/queue/stats", tag = "Queue", operation_id = "get_queue_stats",
    responses((status = 200, description = "Counts", body = QueueStatsResponse), Errors),
)]
pub async fn stats(State(state): State<UserState>, actor: Actor) -> Result<Json<QueueStatsResponse>, ApiError> {
    admins_only(&actor)?;
    Ok(Json(render(&state.service.stats().await?, state.service.now_ms())))
}

fn render(stats: &QueueStats, now_ms: u64) -> QueueStatsResponse {
    let QueueStats { pending, running, paused, completed, error, cancelled, oldest_pending_at_ms } = *stats;
    let age = |at_ms: u64| std::time::Duration::from_millis(now_ms.saturating_sub(at_ms)).as_secs_f64();
    QueueStatsResponse {
        counts: Counts { queued: pending, running, paused, completed, failed: error, cancelled },
        oldest_queued_age_seconds: oldest_pending_at_ms.map(age),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_have_the_queues_names() {
        let stats = QueueStats { pending: 2, error: 1, oldest_pending_at_ms: Some(1_000), ..QueueStats::default() };
        let counts = json!({"queued": 2, "running": 0, "paused": 0, "completed": 0, "failed": 1, "cancelled": 0});
        let body = serde_json::to_value(render(&stats, 3_500)).unwrap();
        assert_eq!(body, json!({"counts": counts, "oldest_queued_age_seconds": 2.5}));
    }
}
