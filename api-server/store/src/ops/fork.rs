//! A run that begins with a part of another one's conversation.
//!
//! Kept messages are copied with numbers below zero, so that they come before all that the new run's journal brings.

use cadre_protocol::ids::RunId;
use cadre_protocol::message::{Message, Role};
use cadre_protocol::run::RunStatus;

use crate::branches::Fork;
use crate::db::{Db, DbError, vals};
use crate::ops::accept::{self, Accept};
use crate::ops::append;
use crate::rows::{AcceptOutcome, Lineage, RunRow};

const COUNT: &str = "select count(*) from messages where run_id = ?1";
/// Number of the last message that is kept.
const LAST_KEPT: &str = "select position from messages where run_id = ?1 order by position limit 1 offset ?2";
const COPY_MESSAGES: &str = "insert into messages (run_id, position, session_id, role, body) \
     select cast(?2 as text), position - ?4, session_id, role, body from messages where run_id = ?1 and position <= ?3";
/// Effects stay with the run that had them: the session's list has each once.
const COPY_CALLS: &str = "insert into tool_calls (run_id, call_id, position, session_id, run_seq, idempotent, finished, \
     finished_index, unknown_outcome, tool_name, body) \
     select cast(?2 as text), call_id, position - ?4, session_id, run_seq, idempotent, finished, \
     finished_index, unknown_outcome, tool_name, body from tool_calls where run_id = ?1 and position <= ?3";
const INSERT_INPUT: &str =
    "insert into messages (run_id, position, session_id, role, body) values (?1, -1, ?2, 'user', ?3)";
const MARK: &str = "update runs set base_seq = (select coalesce(s.base_seq, s.seq) from runs s where s.run_id = ?2), \
     forked_from_run_id = ?2, forked_from_message_index = ?3, forked_from_session_id = ?4, regenerated_from = ?5 \
     where run_id = ?1";
const SOURCE_COPIED_FROM: &str = "select forked_from_session_id from runs where run_id = ?1";
const REPLACE: &str = "update runs set status = 'REGENERATED' where run_id = ?1";

/// Messages of a run.
pub fn count_messages(db: &mut dyn Db, run_id: &RunId) -> Result<u64, DbError> {
    db.first(COUNT, vals![run_id.as_str()])?.map_or(Ok(0), |mut row| row.u64())
}

/// Accepts the run and gives it its beginning. None as the trait says.
pub fn fork(db: &mut dyn Db, accept: &Accept, fork: &Fork) -> Result<Option<AcceptOutcome>, DbError> {
    let ended = append::live(db, &fork.source)?.is_some_and(|source| source.status.is_terminal());
    if !ended || count_messages(db, &fork.source)? != fork.of || fork.keep > fork.of {
        return Ok(None);
    }
    let outcome = accept::accept(db, accept, false)?;
    let AcceptOutcome::Accepted { run, waiting_on, started } = outcome else { return Ok(Some(outcome)) };
    let run = begin(db, *run, fork)?;
    Ok(Some(AcceptOutcome::Accepted { run: Box::new(run), waiting_on, started }))
}

fn begin(db: &mut dyn Db, run: RunRow, fork: &Fork) -> Result<RunRow, DbError> {
    let (run_id, source) = (run.run_id.as_str(), fork.source.as_str());
    if let Some(last) = last_kept(db, fork)? {
        db.write(COPY_MESSAGES, vals![source, run_id, last, last + 2])?;
        // At the end a call may have begun and have no result: whoever goes on must know.
        let last_call = if fork.keep == fork.of { i64::MAX } else { last };
        db.write(COPY_CALLS, vals![source, run_id, last_call, last + 2])?;
    }
    if let Some(input) = &fork.input {
        insert_input(db, &run, input)?;
    }
    let copied_from = db.first(SOURCE_COPIED_FROM, vals![source])?.map(|mut row| row.opt_id()).transpose()?.flatten();
    let lineage = Lineage {
        run_id: Some(fork.source.clone()),
        message_index: Some(fork.keep),
        session_id: copied_from,
        regenerated_from: fork.regenerate.map(|_| fork.source.clone()),
    };
    let regenerated_from = lineage.regenerated_from.as_ref().map(RunId::as_str);
    let copied_from = lineage.session_id.as_ref().map(|id| id.as_str());
    db.write(MARK, vals![run_id, source, fork.keep, copied_from, regenerated_from])?;
    if fork.regenerate == Some(true) {
        db.write(REPLACE, vals![source])?;
        db.note_change(source);
    }
    Ok(RunRow { lineage, ..run })
}

fn last_kept(db: &mut dyn Db, fork: &Fork) -> Result<Option<i64>, DbError> {
    let Some(offset) = fork.keep.checked_sub(1) else { return Ok(None) };
    db.first(LAST_KEPT, vals![fork.source.as_str(), offset])?.map(|mut row| row.int()).transpose()
}

fn insert_input(db: &mut dyn Db, run: &RunRow, input: &Message) -> Result<(), DbError> {
    debug_assert!(input.role == Role::User && run.status == RunStatus::Pending);
    db.write(INSERT_INPUT, vals![run.run_id.as_str(), run.session_id.as_str(), &serde_json::to_string(input)?])
}
