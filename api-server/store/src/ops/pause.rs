//! A run waits for a person: the calls that wait, what is decided about them, and what an approval is spent on.

use std::sync::Arc;

use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::RunId;
use cadre_protocol::requirement::{Decision, RunRequirement, Verdict, arguments_sha256};
use cadre_protocol::run::{RunEnd, RunStatus};

use crate::approvals::{ApprovalRow, Consumption, DecideOutcome, Decisions};
use crate::db::{Db, DbError, Row, vals};
use crate::ops::append::{self, End, Live};
use crate::ops::snapshots::Snapshots;
use crate::ops::{cancel, keys, models, queries, resume};
use crate::rows::{EndedRun, EventChunk, RunRow};

/// Answered content takes the place of the run's answer until it goes on. The run is not finished: it keeps its place in
/// its session's line, but has no slot (`ops::slots`).
const PAUSE: &str = "update runs set status = 'PAUSED', paused_at_ms = ?2, content = ?3, content_type = 'str', \
     metrics = ?4 where run_id = ?1";
/// The time that it waited does not count for its limit. It waits for a slot again, if it needs one.
const REOPEN: &str = "update runs set status = 'PENDING', paused_ms = paused_ms + ?2, \
     paused_at_ms = null, content = null, content_type = null, metrics = null, slot = slot * 0 where run_id = ?1";
const PAUSED_AT: &str = "select paused_at_ms from runs where run_id = ?1";
const TOUCH: &str = "update sessions set updated_at_ms = ?2 where session_id = ?1";
/// A call id that a model uses again is another call: what was decided about the first is over.
const INSERT: &str = "insert into approvals (run_id, call_id, position, ordinal, tool_name, arguments_sha256, verdict, version, \
     body, created_at_ms) values (?1, ?2, ?3, ?8, ?4, ?5, null, 0, ?6, ?7) on conflict (run_id, call_id) do update set \
     position = excluded.position, ordinal = excluded.ordinal, tool_name = excluded.tool_name, arguments_sha256 = excluded.arguments_sha256, \
     verdict = null, version = approvals.version + 1, body = excluded.body, decided_by = null, decided_at_ms = null, \
     consumed_at_ms = null, created_at_ms = excluded.created_at_ms";
const OF_RUN: &str = "select body, verdict, version, position, decided_by from approvals where run_id = ?1 \
     order by position, ordinal";
const DECIDED: &str = "select body, arguments_sha256, verdict from approvals where run_id = ?1 \
     and verdict is not null order by position, ordinal";
const DECIDE: &str = "update approvals set verdict = ?4, version = version + 1, body = ?5, arguments_sha256 = ?6, \
     decided_by = ?7, decided_at_ms = ?8 where run_id = ?1 and call_id = ?2 and version = ?3 and verdict is null";
const CONSUME: &str = "update approvals set consumed_at_ms = ?5 where run_id = ?1 and call_id = ?2 and tool_name = ?3 \
     and arguments_sha256 = ?4 and verdict = 'approved' and consumed_at_ms is null";

/// The calls that a run pauses for, serialized.
pub struct Pause {
    text: String,
    content: String,
    calls: Vec<PausedCall>,
}

/// A call that a run pauses for.
pub struct PausedCall {
    call_id: String,
    tool_name: String,
    arguments_sha256: String,
    body: String,
}

impl Pause {
    /// Serializes what will be stored.
    pub fn new(content: &str, requirements: &[RunRequirement]) -> Result<Self, DbError> {
        let call = |requirement: &RunRequirement| {
            Ok(PausedCall {
                call_id: requirement.tool_execution.tool_call_id.clone(),
                tool_name: requirement.tool_execution.tool_name.clone(),
                arguments_sha256: arguments_sha256(&requirement.tool_execution.tool_args),
                body: serde_json::to_string(requirement)?,
            })
        };
        let calls = requirements.iter().map(call).collect::<Result<_, DbError>>()?;
        Ok(Self { text: content.to_owned(), content: serde_json::to_string(content)?, calls })
    }

    /// About how many bytes it takes.
    pub fn bytes(&self) -> usize {
        self.content.len() + self.calls.iter().map(|call| call.body.len()).sum::<usize>()
    }
}

/// Pauses a run. Nobody is next: it keeps its session's line. A run that somebody has asked to cancel meanwhile ends
/// instead. `end` is where its journal ends with the pause.
pub fn pause(db: &mut dyn Db, live: &Live, pause: &Pause, end: End, at_ms: u64) -> Result<EndedRun, DbError> {
    let position = end.next_index.saturating_sub(1);
    let run_id = live.run_id.as_str();
    let metrics = models::metrics(db, live, at_ms)?;
    db.write(PAUSE, vals![run_id, at_ms, &pause.content, &serde_json::to_string(&metrics)?])?;
    db.write(TOUCH, vals![live.session_id.as_str(), at_ms])?;
    for (ordinal, PausedCall { call_id, tool_name, arguments_sha256, body }) in pause.calls.iter().enumerate() {
        db.write(INSERT, vals![run_id, call_id, position, tool_name, arguments_sha256, body, at_ms, ordinal])?;
    }
    if live.cancel_requested {
        let paused = Live { status: RunStatus::Paused, end, ..live.clone() };
        let end = RunEnd::Cancelled { content: pause.text.clone(), reason: "cancelled by the caller".into() };
        return cancel::close(db, &Snapshots::default(), &paused, &end, at_ms).map(|(ended, _)| ended);
    }
    Ok(EndedRun {
        status: RunStatus::Paused,
        next: None,
        metrics,
        cancel_requested: false,
        session_state: serde_json::Map::new(),
    })
}

/// The calls that a run has paused for, oldest first.
pub fn of_run(db: &mut dyn Db, run_id: &RunId) -> Result<Vec<ApprovalRow>, DbError> {
    let read = |mut row: Row| {
        Ok(ApprovalRow {
            requirement: row.json()?,
            is_open: row.opt_text()?.is_none(),
            version: row.u64()?,
            position: row.u64()?,
            decided_by: row.opt_text()?,
        })
    };
    db.query(OF_RUN, vals![run_id.as_str()])?.into_iter().map(read).collect()
}

/// What was decided, for the engine.
pub fn decisions(db: &mut dyn Db, run_id: &RunId) -> Result<Vec<Decision>, DbError> {
    let read = |mut row: Row| {
        let (requirement, arguments_sha256): (RunRequirement, _) = (row.json()?, row.text()?);
        let verdict = match row.text()?.as_str() {
            "approved" => Verdict::Approved,
            "rejected" => Verdict::Rejected,
            "executed" => Verdict::Executed,
            other => return Err(DbError::Corrupt(format!("unknown verdict {other:?}"))),
        };
        Ok(Decision { verdict, tool: requirement.tool_execution, arguments_sha256 })
    };
    db.query(DECIDED, vals![run_id.as_str()])?.into_iter().map(read).collect()
}

/// Records decisions about calls of a paused run. Once none is open, the run waits for a worker; before, an event tells
/// what is still open.
pub fn decide(db: &mut dyn Db, snapshots: &Snapshots, decisions: &Decisions) -> Result<DecideOutcome, DbError> {
    let Decisions { run_id, changes, decided_by, key, at_ms } = decisions;
    let Some(live) = append::live(db, run_id)? else { return Ok(DecideOutcome::Changed) };
    let fits = |row: &ApprovalRow| {
        let call_id = &row.requirement.tool_execution.tool_call_id;
        changes.iter().any(|(version, change)| row.is_open && *version == row.version && change.is_of(call_id))
    };
    if live.status != RunStatus::Paused || of_run(db, run_id)?.iter().filter(|row| fits(row)).count() < changes.len() {
        return Ok(DecideOutcome::Changed);
    }
    if let Some(key) = key {
        if resume::keyed(db, key)?.is_some() {
            return Ok(DecideOutcome::Changed);
        }
        keys::insert(db, resume::scope(key), &key.key, (run_id, &live.session_id), *at_ms)?;
    }
    for (version, change) in changes {
        let tool = &change.tool_execution;
        let (verdict, body, sha256) =
            (change.verdict(), serde_json::to_string(change)?, arguments_sha256(&tool.tool_args));
        let (by, at) = (verdict.map(|_| decided_by.0.as_str()), verdict.map(|_| *at_ms));
        let verdict = verdict.map(Verdict::as_str);
        db.write(DECIDE, vals![run_id.as_str(), &tool.tool_call_id, *version, verdict, &body, &sha256, by, at])?;
    }
    let open: Vec<RunRequirement> =
        of_run(db, run_id)?.into_iter().filter(|row| row.is_open).map(|row| row.requirement).collect();
    if open.is_empty() {
        // Who retires an idle worker takes the same lock.
        db.lock_session(live.session_id.as_str())?;
        reopen(db, run_id, *at_ms)?;
        return Ok(DecideOutcome::GoesOn { run: Box::new(row(db, run_id)?) });
    }
    let run = row(db, run_id)?;
    let chunk = tell(db, snapshots, &live, &run, open, *at_ms)?;
    Ok(DecideOutcome::StillPaused { run: Box::new(row(db, run_id)?), chunk })
}

fn row(db: &mut dyn Db, run_id: &RunId) -> Result<RunRow, DbError> {
    queries::run(db, run_id, None)?.ok_or_else(|| DbError::Corrupt("a run is gone while it is decided about".into()))
}

fn reopen(db: &mut dyn Db, run_id: &RunId, at_ms: u64) -> Result<(), DbError> {
    let paused_at = db.first(PAUSED_AT, vals![run_id.as_str()])?.map_or(Ok(None), |mut row| row.opt_u64())?;
    let waited = at_ms.saturating_sub(paused_at.unwrap_or(at_ms));
    db.note_change(run_id.as_str());
    db.write(REOPEN, vals![run_id.as_str(), waited])
}

/// Says once more what the run waits for.
fn tell(
    db: &mut dyn Db,
    snapshots: &Snapshots,
    live: &Live,
    run: &RunRow,
    open: Vec<RunRequirement>,
    at_ms: u64,
) -> Result<EventChunk, DbError> {
    let context = live.context(&*snapshots.load(db, &live.revision)?);
    let content = run.content.as_ref().and_then(|content| content.as_str()).unwrap_or_default().to_owned();
    let event = RunEvent::paused(content, open);
    let at = live.end;
    let frames = context.to_sse(&event, at.next_index, at_ms)?;
    let bytes = at.bytes.saturating_add(frames.len() as u64);
    let chunk = EventChunk { first_index: at.next_index, next_index: at.next_index + 1, frames: Arc::from(frames) };
    append::insert_chunk(db, &live.run_id, &chunk, bytes)?;
    Ok(chunk)
}

/// Spends an approval. False when there is none for exactly this call, or it is spent.
pub fn consume(db: &mut dyn Db, wanted: &Consumption) -> Result<bool, DbError> {
    let Consumption { run_id, call_id, tool_name, arguments_sha256, at_ms } = wanted;
    Ok(db.execute(CONSUME, vals![run_id.as_str(), call_id, tool_name, arguments_sha256, *at_ms])? > 0)
}
