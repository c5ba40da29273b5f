//! Start of the head of a session's line, and what its worker needs for it.

use std::collections::HashSet;

use cadre_protocol::ids::{Epoch, RunId, SessionId, WorkerId};
use cadre_protocol::journal::{Progress, RecordedEffect, ToolCallState};
use cadre_protocol::message::Message;
use cadre_protocol::run::RunStatus;

use crate::db::{Db, DbError, vals};
use crate::ops::columns::{self, run_columns};
use crate::ops::snapshots::Snapshots;
use crate::ops::{leases, pause, slots, uploads};
use crate::rows::{Lease, RunRow, StartedRun};

const RUN: &str = concat!(
    "select ",
    run_columns!(),
    ", r.seq, coalesce(r.base_seq, r.seq), r.retries, r.epoch, r.slot from runs r where r.run_id = ?1"
);
const EARLIER: &str = "select 1 from runs where session_id = ?1 and finished_at_ms is null and seq < ?2 limit 1";
const START: &str = "update runs set status = 'RUNNING', epoch = ?2, attempt = attempt + 1, \
     started_at_ms = coalesce(started_at_ms, ?3) where run_id = ?1";
const STATE: &str = "select state from sessions where session_id = ?1";
const HISTORY: &str = "select m.body from (select run_id, seq from runs where session_id = ?1 and seq < ?2 \
     and status = 'COMPLETED' order by seq desc limit ?3) as past join messages m on m.run_id = past.run_id \
     where m.role <> 'system' order by past.seq, m.position";
const EFFECTS: &str = "select run_id, run_seq, call_id, tool_name, effect from (select run_id, run_seq, call_id, tool_name, \
     effect, finished_index from tool_calls where session_id = ?1 and effect is not null \
     order by run_seq desc, finished_index desc limit ?2) as newest order by run_seq, finished_index";
const MESSAGES: &str = "select body from messages where run_id = ?1 order by position";
const TOOL_CALLS: &str =
    "select body, idempotent, finished from tool_calls where run_id = ?1 order by position, call_id";
const MODEL_CALLS: &str = "select count(*) from model_calls where run_id = ?1 and at_ms >= ?2";

/// Where a run is in its session, and how far it has come.
struct Place {
    /// Earlier runs of this number and below belong to its history: it may go on from one that is far back in the line.
    base: u64,
    /// Its number in the line.
    seq: u64,
    retries: u32,
}

/// Starts the head of a line. None as the trait says.
pub fn start(
    db: &mut dyn Db,
    snapshots: &Snapshots,
    run_id: &RunId,
    lease: &Lease,
    at_ms: u64,
) -> Result<Option<StartedRun>, DbError> {
    let Some(head) = head(db, run_id)? else { return Ok(None) };
    if !leases::is_current(db, &head.run.session_id, lease)? {
        return Ok(None);
    }
    begin(db, snapshots, head, lease.epoch, at_ms).map(Some)
}

/// Gives the session of the head of a line to a worker process and starts it. None as the trait says.
pub fn take(
    db: &mut dyn Db,
    snapshots: &Snapshots,
    run_id: &RunId,
    worker_id: &WorkerId,
    registration: &str,
    at_ms: u64,
) -> Result<Option<StartedRun>, DbError> {
    let Some(head) = head(db, run_id)? else { return Ok(None) };
    let session_id = head.run.session_id.clone();
    if head.run.status == RunStatus::Running
        && let Some(lease) = leases::lease(db, &session_id)?
        && (lease.worker_id != *worker_id || lease.registration != registration)
    {
        return Ok(None);
    }
    let epoch = leases::acquire(db, &session_id, worker_id, registration, at_ms)?;
    begin(db, snapshots, head, epoch, at_ms).map(Some)
}

/// A run that may start, or start again.
struct Head {
    run: RunRow,
    place: Place,
    epoch: u64,
}

/// The run, if it is the head of its line, has not ended and needs no slot or has one. Others are kept off it.
fn head(db: &mut dyn Db, run_id: &RunId) -> Result<Option<Head>, DbError> {
    db.lock_run(run_id.as_str())?;
    let Some(mut row) = db.first(RUN, vals![run_id.as_str()])? else { return Ok(None) };
    let run = columns::run(&mut row)?;
    let (seq, base, retries) = (row.u64()?, row.u64()?, row.u32()?);
    let head = Head { run, place: Place { base, seq, retries }, epoch: row.u64()? };
    let waits_for_slot = row.opt_u64()? == Some(slots::WAITING);
    let is_open = matches!(head.run.status, RunStatus::Pending | RunStatus::Running);
    if waits_for_slot || !is_open || db.first(EARLIER, vals![head.run.session_id.as_str(), head.place.seq])?.is_some() {
        return Ok(None);
    }
    Ok(Some(head))
}

fn begin(db: &mut dyn Db, snapshots: &Snapshots, head: Head, lease: Epoch, at_ms: u64) -> Result<StartedRun, DbError> {
    let Head { mut run, place, epoch } = head;
    let first = run.status == RunStatus::Pending || epoch != lease.0;
    // The end of a run is the last thing of its epoch: when it is resumed by the same process, that gets another one.
    let current = if first && epoch == lease.0 { leases::raise(db, &run.session_id)? } else { lease };
    if first {
        db.write(START, vals![run.run_id.as_str(), current.0, at_ms])?;
        run.attempt += 1;
        run.status = RunStatus::Running;
        run.started_at_ms = run.started_at_ms.or(Some(at_ms));
    }
    load(db, snapshots, run, &place, current, first)
}

fn load(
    db: &mut dyn Db,
    snapshots: &Snapshots,
    run: RunRow,
    place: &Place,
    epoch: Epoch,
    first: bool,
) -> Result<StartedRun, DbError> {
    let agent = snapshots.load(db, &run.revision)?;
    Ok(StartedRun {
        epoch,
        first,
        history: history(db, &run.session_id, place.base, agent.history.runs)?,
        progress: progress(db, &run, place.retries)?,
        effects: effects(db, &run.session_id)?,
        uploads: uploads::earlier(db, &run.session_id, place.seq)?,
        session_state: session_state(db, &run.session_id)?,
        agent,
        run,
    })
}

/// Messages of the newest completed runs before a place in the line, oldest first. What a run has kept of another one is
/// there once.
pub fn history(db: &mut dyn Db, session_id: &SessionId, seq: u64, runs: u32) -> Result<Vec<Message>, DbError> {
    if runs == 0 {
        return Ok(Vec::new());
    }
    let rows = db.query(HISTORY, vals![session_id.as_str(), seq, runs])?;
    let (mut seen, mut messages) = (HashSet::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for mut row in rows {
        let message: Message = row.json()?;
        if seen.insert(message.id.clone()) {
            messages.push(message);
        }
    }
    Ok(messages)
}

/// The newest workspace changes of a session, oldest first.
pub fn effects(db: &mut dyn Db, session_id: &SessionId) -> Result<Vec<RecordedEffect>, DbError> {
    let read = |mut row: crate::db::Row| {
        Ok(RecordedEffect {
            run_id: row.id()?,
            run_seq: row.u64()?,
            tool_call_id: row.text()?,
            tool_name: row.text()?,
            effect: row.json()?,
        })
    };
    db.query(EFFECTS, vals![session_id.as_str(), RecordedEffect::MAX])?.into_iter().map(read).collect()
}

/// State of a session.
pub fn session_state(
    db: &mut dyn Db,
    session_id: &SessionId,
) -> Result<serde_json::Map<String, serde_json::Value>, DbError> {
    db.first(STATE, vals![session_id.as_str()])?.map_or_else(|| Ok(serde_json::Map::new()), |mut row| row.json())
}

/// Messages of a run, oldest first.
pub fn messages(db: &mut dyn Db, run_id: &RunId) -> Result<Vec<Message>, DbError> {
    db.query(MESSAGES, vals![run_id.as_str()])?.into_iter().map(|mut row| row.json()).collect()
}

/// Tool calls of a run, in the order in which they began.
pub fn tool_calls(db: &mut dyn Db, run_id: &RunId) -> Result<Vec<ToolCallState>, DbError> {
    let read = |mut row: crate::db::Row| {
        Ok(ToolCallState { tool: row.json()?, idempotent: row.bool()?, finished: row.bool()? })
    };
    db.query(TOOL_CALLS, vals![run_id.as_str()])?.into_iter().map(read).collect()
}

fn progress(db: &mut dyn Db, run: &RunRow, retries: u32) -> Result<Progress, DbError> {
    if run.next_index == 0 && run.attempt <= 1 && run.lineage.is_empty() {
        return Ok(Progress::default());
    }
    let since = run.started_at_ms.unwrap_or_default();
    let model_calls = db.first(MODEL_CALLS, vals![run.run_id.as_str(), since])?.map_or(Ok(0), |mut row| row.u32())?;
    Ok(Progress {
        next_index: run.next_index,
        messages: messages(db, &run.run_id)?,
        tool_calls: tool_calls(db, &run.run_id)?,
        model_calls,
        retries,
        decisions: pause::decisions(db, &run.run_id)?,
    })
}
