//! Ends that the server decides: cancels of runs that wait, limits, time-outs.

use std::sync::Arc;

use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::{Epoch, RunId};
use cadre_protocol::run::{RunEnd, RunMetrics, RunStatus};

use crate::db::{Db, DbError, vals};
use crate::ops::append::{self, Live};
use crate::ops::snapshots::Snapshots;
use crate::ops::{finish, leases, models};
use crate::rows::{CancelOutcome, EndedRun, EventChunk, Principal, ServerEnd};

const REQUEST: &str =
    "update runs set cancel_requested = 1, cancellation_stage = 'EXECUTING' where run_id = ?1 and cancel_requested = 0";

/// Most characters of a failure's message or a cancel's reason that are kept.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// Asks for a cancel.
pub fn cancel(
    db: &mut dyn Db,
    snapshots: &Snapshots,
    run_id: &RunId,
    principal: Option<&Principal>,
    reason: &str,
    at_ms: u64,
) -> Result<CancelOutcome, DbError> {
    let Some(live) = append::live(db, run_id)? else { return Ok(CancelOutcome::NotFound) };
    if principal.is_some_and(|principal| *principal != live.principal) {
        return Ok(CancelOutcome::NotFound);
    }
    match live.status {
        RunStatus::Pending | RunStatus::Paused => {
            let end = RunEnd::Cancelled { content: String::new(), reason: reason.to_owned() };
            let (ended, chunk) = close(db, snapshots, &live, &end, at_ms)?;
            Ok(CancelOutcome::Ended { chunk: Some(chunk), next: ended.next })
        }
        RunStatus::Running => {
            db.write(REQUEST, vals![run_id.as_str()])?;
            Ok(CancelOutcome::Requested { session_id: live.session_id, epoch: live.epoch })
        }
        ended => Ok(CancelOutcome::AlreadyEnded(ended)),
    }
}

/// Ends an unfinished run.
pub fn end(
    db: &mut dyn Db,
    snapshots: &Snapshots,
    end: &ServerEnd,
) -> Result<Option<(EndedRun, Option<EventChunk>)>, DbError> {
    let Some(live) = append::live(db, &end.run_id)? else { return Ok(None) };
    let runs_so = |epoch: Epoch| live.status == RunStatus::Running && live.epoch == epoch;
    if live.status.is_terminal() || !end.epoch.is_none_or(runs_so) {
        return Ok(None);
    }
    let (ended, chunk) = close(db, snapshots, &live, &end.end, end.at_ms)?;
    Ok(Some((ended, Some(chunk))))
}

/// A run that waits, for its turn or for a person, has no writer of its own: the session's worker keeps its lease.
pub fn close(
    db: &mut dyn Db,
    snapshots: &Snapshots,
    live: &Live,
    end: &RunEnd,
    at_ms: u64,
) -> Result<(EndedRun, EventChunk), DbError> {
    if live.status == RunStatus::Running {
        leases::fence(db, &live.session_id, at_ms)?;
    }
    let metrics = models::metrics(db, live, at_ms)?;
    let context = live.context(&*snapshots.load(db, &live.revision)?);
    let at = live.end;
    let frames = context.to_sse(&event(end, &metrics), at.next_index, at_ms)?;
    let bytes = at.bytes.saturating_add(frames.len() as u64);
    let chunk = EventChunk { first_index: at.next_index, next_index: at.next_index + 1, frames: Arc::from(frames) };
    append::insert_chunk(db, &live.run_id, &chunk, bytes)?;
    Ok((finish::finish(db, live, end, &metrics, at_ms)?, chunk))
}

fn event(end: &RunEnd, metrics: &RunMetrics) -> RunEvent {
    match end {
        RunEnd::Completed { content, content_type } => RunEvent::RunCompleted {
            content: content.clone(),
            content_type: content_type.clone(),
            metrics: Some(models::event_metrics(metrics)),
        },
        RunEnd::Cancelled { content, reason } => {
            RunEvent::RunCancelled { content: content.clone(), reason: cut(reason) }
        }
        RunEnd::Error(failure) => RunEvent::RunError {
            content: cut(&failure.message),
            error_type: failure.error_type.clone(),
            error_id: failure.error_id.clone(),
        },
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}
