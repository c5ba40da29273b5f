//! A run that failed goes on under its own id.

use std::sync::Arc;

use cadre_protocol::ids::{RunId, SessionId};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::run::RunStatus;

use crate::branches::{KeyOf, Keyed, ResumeOutcome, Resumption};
use crate::db::{Db, DbError, vals};
use crate::ops::allowances::Allowances;
use crate::ops::append::{self, Live};
use crate::ops::depth::{self, Full, Wish};
use crate::ops::keys::{self, Found};
use crate::ops::snapshots::{self, Snapshots};
use crate::ops::{fork, queries, slots};
use crate::rows::EventChunk;

const TAKE_PLACE: &str = "update sessions set next_seq = next_seq + 1, updated_at_ms = ?2 where session_id = ?1 \
     returning next_seq - 1";
/// The time limit, model calls and attempts after failures count anew. It waits behind all that the session's line has,
/// but its history ends where it did.
const REOPEN: &str = "update runs set status = 'PENDING', base_seq = coalesce(base_seq, seq), seq = ?2, revision = ?3, \
     retries = 0, cancel_requested = 0, cancellation_stage = null, started_at_ms = null, finished_at_ms = null, \
     paused_at_ms = null, paused_ms = 0, \
     content = null, content_type = null, failure = null, metrics = null, max_sessions = ?5, slot = ?6, \
     input = coalesce(cast(?4 as text), input) where run_id = ?1";
const MESSAGES: &str = "select position, body from messages where run_id = ?1 order by position desc";
const FORGET_MESSAGE: &str = "delete from messages where run_id = ?1 and position = ?2";
/// A call that had begun: whether it took effect is decided by the rules for unknown outcomes.
const REOPEN_CALL: &str = "update tool_calls set finished = 0, finished_index = null, unknown_outcome = 0 \
     where run_id = ?1 and call_id = ?2 and finished = 1 and unknown_outcome = 1";
/// One that was announced and never began.
const FORGET_CALL: &str =
    "delete from tool_calls where run_id = ?1 and call_id = ?2 and finished = 1 and unknown_outcome = 0";
const INSERT_MESSAGE: &str =
    "insert into messages (run_id, position, session_id, role, body) values (?1, ?2, ?3, 'user', ?4)";

/// A resumption with the text of its snapshot, unless that is known to be stored.
pub struct Prepared {
    resumption: Resumption,
    snapshot: Option<String>,
    question: Option<String>,
}

impl Prepared {
    /// Serializes what will be stored.
    pub fn new(resumption: Resumption, snapshots: &Snapshots) -> Result<Self, DbError> {
        let snapshot = match snapshots.cached(&resumption.revision) {
            Some(_) => None,
            None => Some(serde_json::to_string(&*resumption.agent)?),
        };
        let question = resumption.question.as_ref().map(serde_json::to_string).transpose()?;
        Ok(Self { resumption, snapshot, question })
    }
}

/// Puts the run into its session's line again.
pub fn resume(db: &mut dyn Db, depths: &Allowances, prepared: &Prepared) -> Result<ResumeOutcome, DbError> {
    let Resumption { run_id, of, input, question: _, key, agent, revision, max_queue_depth, shares, is_limited, at_ms } =
        &prepared.resumption;
    if let Some(key) = key
        && let Some(keyed) = keyed(db, key)?
    {
        return Ok(match keyed {
            Keyed::Run(run) => ResumeOutcome::Replayed(run),
            Keyed::Conflict => ResumeOutcome::IdempotencyConflict,
        });
    }
    let Some(live) = append::live(db, run_id)? else { return Ok(ResumeOutcome::Changed) };
    // Whether a cancelled one may go on is decided by whoever asks.
    if !matches!(live.status, RunStatus::Error | RunStatus::Cancelled) || fork::count_messages(db, run_id)? != *of {
        return Ok(ResumeOutcome::Changed);
    }
    let wish = Wish { agent, max_depth: *max_queue_depth, of_namespace: shares.max_queue_depth, at_ms: *at_ms };
    match depth::full(db, depths, &wish)? {
        None => {}
        Some(Full::Queue) => return Ok(ResumeOutcome::QueueFull),
        Some(Full::Namespace) => return Ok(ResumeOutcome::NamespaceFull),
    }
    if let Some(json) = &prepared.snapshot {
        snapshots::insert(db, revision, agent, json, *at_ms)?;
    }
    forget_stand_ins(db, run_id)?;
    if let Some(input) = input {
        add_input(db, &live, input)?;
    }
    let seq = take_place(db, &live.session_id, *at_ms)?;
    let slot = is_limited.then_some(slots::WAITING);
    let question = prepared.question.as_ref();
    db.write(REOPEN, vals![run_id.as_str(), seq, revision.as_str(), question, agent.max_concurrent_sessions, slot])?;
    if let Some(key) = key {
        keys::insert(db, scope(key), &key.key, (run_id, &live.session_id), *at_ms)?;
    }
    let run =
        queries::run(db, run_id, None)?.ok_or_else(|| DbError::Corrupt("a run is gone while it is resumed".into()))?;
    Ok(ResumeOutcome::Resumed { run: Box::new(run), waiting_on: queries::waiting_on(db, run_id)? })
}

/// Whose key it is.
pub fn scope(of: &KeyOf) -> keys::Scope<'_> {
    let KeyOf { key: _, principal, user_id, component, origin } = of;
    keys::Scope { principal, user_id: user_id.as_deref(), origin, component }
}

/// What an idempotency key names.
pub fn keyed(db: &mut dyn Db, of: &KeyOf) -> Result<Option<Keyed>, DbError> {
    Ok(keys::find(db, scope(of), &of.key)?.map(|found| match found {
        Found::Run(run) => Keyed::Run(run),
        Found::Conflict => Keyed::Conflict,
    }))
}

fn take_place(db: &mut dyn Db, session_id: &SessionId, at_ms: u64) -> Result<u64, DbError> {
    let mut row = db
        .first(TAKE_PLACE, vals![session_id.as_str(), at_ms])?
        .ok_or_else(|| DbError::Corrupt("a run's session is missing".into()))?;
    row.u64()
}

/// Removes what only stands for results of the last reply's calls, so that these are looked at anew.
fn forget_stand_ins(db: &mut dyn Db, run_id: &RunId) -> Result<(), DbError> {
    for mut row in db.query(MESSAGES, vals![run_id.as_str()])? {
        let (position, message): (i64, Message) = (row.int()?, row.json()?);
        if message.role == Role::Assistant {
            break;
        }
        let Some(call_id) = message.tool_call_id.filter(|_| message.stand_in) else { continue };
        db.write(FORGET_MESSAGE, vals![run_id.as_str(), position])?;
        db.write(FORGET_CALL, vals![run_id.as_str(), &call_id])?;
        db.write(REOPEN_CALL, vals![run_id.as_str(), &call_id])?;
    }
    Ok(())
}

/// The message gets a number of the journal, so that it comes before all that the next worker writes.
fn add_input(db: &mut dyn Db, live: &Live, input: &Message) -> Result<(), DbError> {
    let Live { run_id, session_id, end, .. } = live;
    let body = serde_json::to_string(input)?;
    let bytes = end.bytes.saturating_add(body.len() as u64);
    let chunk = EventChunk { first_index: end.next_index, next_index: end.next_index + 1, frames: Arc::from("") };
    append::insert_chunk(db, run_id, &chunk, bytes)?;
    db.write(INSERT_MESSAGE, vals![run_id.as_str(), end.next_index, session_id.as_str(), &body])
}
