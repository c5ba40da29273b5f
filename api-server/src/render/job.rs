//! Jobs of the queue: AgentOS's QueueJobSchema.

use cadre_protocol::run::RunStatus;
use cadre_store::rows::jobs::JobRow;
use cadre_store::rows::{Origin, RunRow};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::time::seconds;

/// A run with its place in the queue. Times are Unix seconds.
#[derive(Debug, Serialize, ToSchema)]
pub struct QueueJob {
    /// The run's id.
    pub id: String,
    /// `agent`.
    pub component_type: String,
    /// Id of the agent.
    pub component_id: String,
    /// Session.
    pub session_id: String,
    /// `run`.
    pub job_type: String,
    /// The user that the caller named.
    pub user_id: Option<String>,
    /// What was asked: `{input, kwargs, scope, session_seq, serialize_session}`.
    #[schema(value_type = Object)]
    pub payload: Value,
    /// `queued`, `running`, `paused`, `completed`, `failed` or `cancelled`.
    pub status: String,
    /// Attempts begun.
    pub attempt: u32,
    /// Attempts allowed.
    pub max_attempts: u32,
    /// The key that it was accepted under.
    pub idempotency_key: Option<String>,
    /// When it could first have started.
    pub available_at: u64,
    /// The worker that has it.
    pub locked_by: Option<String>,
    /// Since when.
    pub locked_at: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
    /// When it was accepted.
    pub created_at: u64,
    /// When it last changed.
    pub updated_at: u64,
    /// When it ended.
    pub completed_at: Option<u64>,
}

/// A job.
#[must_use]
pub fn job(row: JobRow, default_namespace: &str) -> QueueJob {
    let JobRow { run, seq, max_attempts, idempotency_key, lease } = row;
    let changed_at_ms = run.finished_at_ms.or(run.started_at_ms).unwrap_or(run.created_at_ms);
    QueueJob {
        id: run.run_id.to_string(),
        component_type: run.component.kind.as_str().to_owned(),
        component_id: run.component.api_id(default_namespace),
        session_id: run.session_id.to_string(),
        job_type: "run".to_owned(),
        payload: payload(&run, seq),
        user_id: run.user_id,
        status: state(run.status).to_owned(),
        attempt: run.attempt,
        // An attempt that follows a lost worker is not one of the agent's own.
        max_attempts: max_attempts.max(run.attempt),
        idempotency_key,
        available_at: seconds(run.created_at_ms),
        locked_at: lease.as_ref().map(|(_, at_ms)| seconds(*at_ms)),
        locked_by: lease.map(|(worker, _)| worker.to_string()),
        error: run.failure.map(|failure| failure.message),
        created_at: seconds(run.created_at_ms),
        updated_at: seconds(changed_at_ms),
        completed_at: run.finished_at_ms.map(seconds),
    }
}

fn payload(run: &RunRow, seq: u64) -> Value {
    let mut kwargs = Map::new();
    let mut add = |name: &str, value: Value| kwargs.insert(name.to_owned(), value);
    if !run.input.dependencies.is_empty() {
        add("dependencies", Value::Object(run.input.dependencies.clone()));
    }
    if let Some(schema) = &run.input.output_schema {
        add("output_schema", schema.clone());
    }
    if !run.metadata.is_empty() {
        add("metadata", Value::Object(run.metadata.clone()));
    }
    let source = match run.origin {
        Origin::Http => "http",
        Origin::RunObject { .. } => "run_object",
    };
    json!({
        "input": run.input.text,
        "kwargs": kwargs,
        "scope": { "pinned": false, "source": source, "user_id": run.user_id, "version": run.revision.as_str() },
        "session_seq": seq,
        "serialize_session": true,
    })
}

/// The queue's own name of a status.
#[must_use]
pub fn state(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Pending => "queued",
        RunStatus::Running => "running",
        RunStatus::Paused => "paused",
        RunStatus::Completed | RunStatus::Regenerated => "completed",
        RunStatus::Error => "failed",
        RunStatus::Cancelled => "cancelled",
    }
}

/// The statuses that a state of the queue stands for; none when there is no such state.
#[must_use]
pub fn statuses(state: &str) -> &'static [RunStatus] {
    match state {
        "queued" => &[RunStatus::Pending],
        "running" => &[RunStatus::Running],
        "paused" => &[RunStatus::Paused],
        "completed" => &[RunStatus::Completed, RunStatus::Regenerated],
        "failed" => &[RunStatus::Error],
        "cancelled" => &[RunStatus::Cancelled],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_statuses_agree() {
        for name in ["queued", "running", "paused", "completed", "failed", "cancelled"] {
            assert!(!statuses(name).is_empty() && statuses(name).iter().all(|status| state(*status) == name), "{name}");
        }
        assert!(statuses("PENDING").is_empty());
    }
}
