//! The end of a run: its row, its session, and who is next.

use cadre_protocol::run::{RunEnd, RunMetrics, RunStatus};

use crate::db::{Db, DbError, vals};
use crate::ops::append::Live;
use crate::rows::EndedRun;

const FINISH: &str = "update runs set status = ?2, finished_at_ms = ?3, content = ?4, content_type = ?5, failure = ?6, \
     metrics = ?7, cancellation_stage = ?8 where run_id = ?1";
const TOUCH: &str = "update sessions set updated_at_ms = ?2 where session_id = ?1";
/// Ends a run.
pub fn finish(
    db: &mut dyn Db,
    live: &Live,
    end: &RunEnd,
    metrics: &RunMetrics,
    at_ms: u64,
) -> Result<EndedRun, DbError> {
    let outcome = Outcome::of(end)?;
    let stage = (outcome.status == RunStatus::Cancelled).then(|| stage(live.status));
    let text = serde_json::to_string(metrics)?;
    let values = vals![
        live.run_id.as_str(),
        outcome.status.as_str(),
        at_ms,
        outcome.content.as_ref(),
        outcome.content_type,
        outcome.failure.as_ref(),
        &text,
        stage
    ];
    db.write(FINISH, values)?;
    db.write(TOUCH, vals![live.session_id.as_str(), at_ms])?;
    let session_state = live.session_state.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default();
    Ok(EndedRun {
        status: outcome.status,
        next: live.next.clone(),
        metrics: metrics.clone(),
        cancel_requested: live.cancel_requested,
        session_state,
    })
}

struct Outcome<'a> {
    status: RunStatus,
    content: Option<String>,
    content_type: Option<&'a str>,
    failure: Option<String>,
}

impl<'a> Outcome<'a> {
    fn of(end: &'a RunEnd) -> Result<Self, DbError> {
        Ok(match end {
            RunEnd::Completed { content, content_type } => Self {
                status: RunStatus::Completed,
                content: Some(serde_json::to_string(content)?),
                content_type: Some(content_type),
                failure: None,
            },
            RunEnd::Cancelled { content, reason: _ } => Self {
                status: RunStatus::Cancelled,
                content: Some(serde_json::to_string(content)?),
                content_type: Some("str"),
                failure: None,
            },
            RunEnd::Error(failure) => Self {
                status: RunStatus::Error,
                content: None,
                content_type: None,
                failure: Some(serde_json::to_string(failure)?),
            },
        })
    }
}

/// When a cancel reached a run, in AgentOS's words.
fn stage(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Pending => "PENDING",
        RunStatus::Paused => "PAUSED",
        _ => "EXECUTING",
    }
}
