//! Appending: the fence, the place in the journal, limits, and the rows that entries become.

use std::sync::Arc;

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::event::{EventContext, MAX_EVENT_BYTES, RunEvent};
use cadre_protocol::ids::{Epoch, Revision, RunId, SessionId};
use cadre_protocol::run::{RunMetrics, RunStatus};

use crate::db::{Db, DbError, Row, vals};
use crate::ops::columns;
use crate::ops::entries::{EVENT_TOO_LARGE, Fact, Frame, Limit, Prepared, PreparedBatch};
use crate::ops::{finish, models, pause};
use crate::rows::{AppendOutcome, EndedRun, EventChunk, Principal};

/// The run, its session's newest epoch, the end of its journal, and the head of the session's line without it.
const LIVE: &str = "select r.session_id, r.seq, r.status, r.revision, r.principal, r.epoch, r.created_at_ms, \
     r.started_at_ms, r.cancel_requested, s.state, l.epoch, e.next_index, e.run_bytes, n.run_id, n.status, n.seq \
     from runs r left join sessions s on s.session_id = r.session_id left join session_leases l on l.session_id = r.session_id \
     left join events e on e.run_id = r.run_id \
     and e.first_index = (select max(first_index) from events where run_id = ?1) \
     left join runs n on n.session_id = r.session_id and n.seq = (select min(o.seq) from runs o \
     where o.session_id = r.session_id and o.finished_at_ms is null and o.run_id <> ?1) where r.run_id = ?1";
const INSERT_CHUNK: &str =
    "insert into events (run_id, first_index, next_index, run_bytes, frames) values (?1, ?2, ?3, ?4, ?5)";
const INSERT_MESSAGE: &str =
    "insert into messages (run_id, position, session_id, role, body) values (?1, ?2, ?3, ?4, ?5)";
const TOOL_STARTED: &str = "insert into tool_calls (run_id, call_id, position, session_id, run_seq, idempotent, finished, \
     unknown_outcome, tool_name, body) values (?1, ?2, ?3, ?4, ?5, ?6, 0, 0, ?7, ?8) \
     on conflict (run_id, call_id) do update set idempotent = excluded.idempotent, finished = 0, body = excluded.body";
const TOOL_FINISHED: &str = "insert into tool_calls (run_id, call_id, position, session_id, run_seq, idempotent, finished, \
     finished_index, unknown_outcome, tool_name, effect, body) values (?1, ?2, ?3, ?4, ?5, 0, 1, ?3, ?6, ?7, ?8, ?9) \
     on conflict (run_id, call_id) do update set finished = 1, finished_index = excluded.finished_index, \
     unknown_outcome = excluded.unknown_outcome, effect = excluded.effect, body = excluded.body";
const RETRY: &str = "update runs set attempt = attempt + 1, retries = retries + 1 where run_id = ?1";

/// Most bytes of one run's journal (security rule 19).
pub const MAX_RUN_BYTES: u64 = 64 << 20;

/// The run's journal is larger than [`MAX_RUN_BYTES`].
const RUN_TOO_LARGE: Limit = "the run's events are too large";

/// A run as writers of its journal need it.
#[derive(Clone)]
pub struct Live {
    /// Run.
    pub run_id: RunId,
    /// Session.
    pub session_id: SessionId,
    /// Place in the line.
    pub seq: u64,
    /// Status.
    pub status: RunStatus,
    /// Snapshot.
    pub revision: Revision,
    /// Owner.
    pub principal: Principal,
    /// Epoch of its start.
    pub epoch: Epoch,
    /// Unix milliseconds.
    pub created_at_ms: u64,
    /// Unix milliseconds.
    pub started_at_ms: Option<u64>,
    /// Whether a cancel was asked for.
    pub cancel_requested: bool,
    /// State of the session, JSON.
    pub session_state: Option<String>,
    /// The session's newest epoch.
    pub newest_epoch: Option<Epoch>,
    /// Where its journal ends.
    pub end: End,
    /// Who is next when it ends.
    pub next: Option<RunId>,
}

impl Live {
    /// What its events carry.
    pub fn context(&self, agent: &AgentSnapshot) -> EventContext {
        EventContext {
            agent_id: agent.api_id.clone(),
            agent_name: agent.display_name.clone(),
            run_id: self.run_id.clone(),
            session_id: self.session_id.clone(),
            skip: agent.skip_events.clone(),
        }
    }
}

/// Reads a run and keeps other writers off it.
pub fn live(db: &mut dyn Db, run_id: &RunId) -> Result<Option<Live>, DbError> {
    db.lock_run(run_id.as_str())?;
    let Some(mut row) = db.first(LIVE, vals![run_id.as_str()])? else { return Ok(None) };
    let (session_id, seq, status) = (row.id()?, row.u64()?, columns::status(&mut row)?);
    Ok(Some(Live {
        run_id: run_id.clone(),
        session_id,
        seq,
        status,
        revision: row.id()?,
        principal: Principal(row.text()?),
        epoch: Epoch(row.u64()?),
        created_at_ms: row.u64()?,
        started_at_ms: row.opt_u64()?,
        cancel_requested: row.bool()?,
        session_state: row.opt_text()?,
        newest_epoch: row.opt_u64()?.map(Epoch),
        end: End { next_index: row.opt_u64()?.unwrap_or_default(), bytes: row.opt_u64()?.unwrap_or_default() },
        next: next(&mut row, seq)?,
    }))
}

/// The head of the line without the run at `seq`, if it waits and only becomes the head by that one's end.
fn next(row: &mut Row, seq: u64) -> Result<Option<RunId>, DbError> {
    let (run_id, status, head) = (row.opt_id()?, row.opt_text()?, row.opt_u64()?);
    let is_next = status.as_deref() == Some(RunStatus::Pending.as_str()) && head.is_some_and(|head| head > seq);
    Ok(run_id.filter(|_| is_next))
}

/// Where a journal ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct End {
    /// Number of the next entry.
    pub next_index: u64,
    /// Bytes so far.
    pub bytes: u64,
}

/// Stores consecutive events.
pub fn insert_chunk(db: &mut dyn Db, run_id: &RunId, chunk: &EventChunk, run_bytes: u64) -> Result<(), DbError> {
    let values = vals![run_id.as_str(), chunk.first_index, chunk.next_index, run_bytes, &*chunk.frames];
    db.note_change(run_id.as_str());
    db.write(INSERT_CHUNK, values)
}

/// Appends a batch.
pub fn append(db: &mut dyn Db, batch: &PreparedBatch) -> Result<AppendOutcome, DbError> {
    let Some(live) = live(db, &batch.run_id)? else { return Ok(AppendOutcome::Fenced) };
    if live.epoch != batch.epoch || live.newest_epoch != Some(batch.epoch) {
        return Ok(AppendOutcome::Fenced);
    }
    let end = live.end;
    if batch.first_index > end.next_index {
        return Ok(AppendOutcome::Gap { next_index: end.next_index });
    }
    if batch.next_index() <= end.next_index {
        return Ok(AppendOutcome::Appended { next_index: end.next_index, chunk: None, ended: None });
    }
    if live.status != RunStatus::Running {
        return Ok(AppendOutcome::Fenced);
    }
    let stored = usize::try_from(end.next_index - batch.first_index).unwrap_or(usize::MAX);
    write(db, &live, end, batch, batch.entries.get(stored..).unwrap_or_default())
}

fn write(
    db: &mut dyn Db,
    live: &Live,
    end: End,
    batch: &PreparedBatch,
    entries: &[Prepared],
) -> Result<AppendOutcome, DbError> {
    let metrics = match entries.iter().find(|entry| is_end(entry)) {
        Some(entry) => Some(models::metrics(db, live, entry.at_ms)?),
        None => None,
    };
    let frames = match render(batch, entries, metrics.as_ref())? {
        Ok(frames) => frames,
        Err(limit) => return Ok(AppendOutcome::LimitExceeded(limit)),
    };
    let bodies: usize = entries.iter().map(Prepared::bytes).sum();
    let bytes = end.bytes.saturating_add(bodies.max(frames.live.len()) as u64);
    if bytes > MAX_RUN_BYTES {
        return Ok(AppendOutcome::LimitExceeded(RUN_TOO_LARGE));
    }
    let Rendered { live: frames, kept } = frames;
    let chunk = EventChunk { first_index: end.next_index, next_index: batch.next_index(), frames: Arc::from(frames) };
    match kept {
        None => insert_chunk(db, &live.run_id, &chunk, bytes)?,
        Some(kept) => insert_chunk(db, &live.run_id, &EventChunk { frames: Arc::from(kept), ..chunk.clone() }, bytes)?,
    }
    let mut ended = None;
    for entry in entries {
        if let Some(end) = write_fact(db, live, entry, metrics.as_ref(), bytes)? {
            ended = Some(end);
        }
    }
    Ok(AppendOutcome::Appended { next_index: chunk.next_index, chunk: Some(chunk), ended })
}

fn is_end(entry: &Prepared) -> bool {
    matches!(entry.frame, Frame::Completed { .. }) || matches!(entry.fact, Fact::Finished(_))
}

/// A batch's events.
struct Rendered {
    /// For whoever listens.
    live: String,
    /// For the record, where that is less.
    kept: Option<String>,
}

fn render(
    batch: &PreparedBatch,
    entries: &[Prepared],
    metrics: Option<&RunMetrics>,
) -> Result<Result<Rendered, Limit>, DbError> {
    let mut frames = String::with_capacity(entries.iter().map(Prepared::bytes).sum());
    // What of it is kept, as long as that is not all.
    let mut kept: Option<String> = None;
    for entry in entries {
        match &entry.frame {
            Frame::None => {}
            Frame::Ready { text, kept: false } => {
                kept.get_or_insert_with(|| frames.clone());
                frames.push_str(text);
            }
            Frame::Ready { text, kept: true } => {
                frames.push_str(text);
                if let Some(kept) = &mut kept {
                    kept.push_str(text);
                }
            }
            Frame::Completed { content, content_type } => {
                let event = RunEvent::RunCompleted {
                    content: content.clone(),
                    content_type: content_type.clone(),
                    metrics: metrics.map(models::event_metrics),
                };
                let text = batch.context.to_sse(&event, entry.index, entry.at_ms)?;
                if text.len() > MAX_EVENT_BYTES {
                    return Ok(Err(EVENT_TOO_LARGE));
                }
                frames.push_str(&text);
                if let Some(kept) = &mut kept {
                    kept.push_str(&text);
                }
            }
        }
    }
    Ok(Ok(Rendered { live: frames, kept }))
}

fn write_fact(
    db: &mut dyn Db,
    live: &Live,
    entry: &Prepared,
    metrics: Option<&RunMetrics>,
    run_bytes: u64,
) -> Result<Option<EndedRun>, DbError> {
    let (run_id, session_id) = (live.run_id.as_str(), live.session_id.as_str());
    match &entry.fact {
        Fact::None => {}
        Fact::Message { role, body } => {
            db.write(INSERT_MESSAGE, vals![run_id, entry.index, session_id, *role, body])?;
        }
        Fact::ToolStarted { call_id, tool_name, body, idempotent } => {
            let values = vals![run_id, call_id, entry.index, session_id, live.seq, *idempotent, tool_name, body];
            db.write(TOOL_STARTED, values)?;
        }
        Fact::ToolFinished { call_id, tool_name, body, effect, unknown_outcome } => {
            let values = vals![
                run_id,
                call_id,
                entry.index,
                session_id,
                live.seq,
                *unknown_outcome,
                tool_name,
                effect.as_ref(),
                body
            ];
            db.write(TOOL_FINISHED, values)?;
        }
        Fact::Retry => db.write(RETRY, vals![run_id])?,
        Fact::Finished(end) => {
            let metrics = metrics.cloned().unwrap_or_default();
            return finish::finish(db, live, end, &metrics, entry.at_ms).map(Some);
        }
        Fact::Paused(calls) => {
            let end = End { next_index: entry.index + 1, bytes: run_bytes };
            return pause::pause(db, live, calls, end, entry.at_ms).map(Some);
        }
    }
    Ok(None)
}
