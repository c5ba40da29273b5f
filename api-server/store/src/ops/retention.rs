//! What the record forgets. Never what belongs to a run that has not ended.

use cadre_protocol::ids::{RunId, SessionId};
use cadre_protocol::run::RunInput;

use crate::db::{Db, DbError, Row, vals};
use crate::ops::blobs;
use crate::rows::upkeep::{Expiry, OldRun};

// A Run object may be submitted again for as long as it exists, so its key stays with its session.
const OLD_KEYS: &str = "select k.principal, k.user_id, k.origin, k.idem_key from idempotency_keys k \
     where k.created_at_ms < ?1 and k.origin = 'http' and not exists (select 1 from runs r \
     where r.run_id = k.run_id and r.finished_at_ms is null) order by k.created_at_ms limit ?2";
const FORGET_KEY: &str =
    "delete from idempotency_keys where principal = ?1 and user_id = ?2 and origin = ?3 and idem_key = ?4";
const OLD_INTENTS: &str = "select run_id, principal from cancel_intents where expires_at_ms <= ?1 limit ?2";
const FORGET_INTENT: &str = "delete from cancel_intents where run_id = ?1 and principal = ?2";
const OLD_RUNS: &str = "select run_id, session_id from runs where created_at_ms < ?1 and finished_at_ms < ?1 \
     order by created_at_ms limit ?2";
const IS_OLD: &str = "select 1 from runs where run_id = ?1 and finished_at_ms < ?2";
const INPUT: &str = "select input from runs where run_id = ?1";
const EMPTY_SESSIONS: &str = "select s.session_id from sessions s where s.created_at_ms < ?1 and s.updated_at_ms < ?1 \
     and not exists (select 1 from runs r where r.session_id = s.session_id) order by s.created_at_ms limit ?2";

/// The longest period of a budget is a month.
const FORGET_SPEND: &str = "delete from model_spend where window_ms < ?1";
const SPEND_KEPT_MS: u64 = 40 * 24 * 3_600_000;

/// Removes a run's rows.
const DELETE: [&str; 8] = [
    "delete from events where run_id = ?1",
    "delete from messages where run_id = ?1",
    "delete from tool_calls where run_id = ?1",
    "delete from approvals where run_id = ?1",
    "delete from model_calls where run_id = ?1",
    "delete from call_reserves where run_id = ?1",
    "delete from idempotency_keys where session_id = ?2 and run_id = ?1",
    "delete from runs where run_id = ?1",
];

/// Forgets keys and intents whose time is over; answers how many.
pub fn expire(db: &mut dyn Db, expiry: &Expiry) -> Result<u64, DbError> {
    let Expiry { keys_before_ms, now_ms, limit } = *expiry;
    let mut gone = 0;
    for mut row in db.query(OLD_KEYS, vals![keys_before_ms, limit])? {
        let (principal, user_id, origin, key) = (row.text()?, row.text()?, row.text()?, row.text()?);
        db.write(FORGET_KEY, vals![&principal, &user_id, &origin, &key])?;
        gone += 1;
    }
    for mut row in db.query(OLD_INTENTS, vals![now_ms, limit])? {
        let (run_id, principal) = (row.text()?, row.text()?);
        db.write(FORGET_INTENT, vals![&run_id, &principal])?;
        gone += 1;
    }
    gone += blobs::forget_orphans(db, now_ms, limit)?;
    db.write(FORGET_SPEND, vals![now_ms.saturating_sub(SPEND_KEPT_MS)])?;
    Ok(gone)
}

/// Runs that ended before a time, oldest first.
pub fn old_runs(db: &mut dyn Db, before_ms: u64, limit: u32) -> Result<Vec<OldRun>, DbError> {
    let read = |mut row: Row| Ok(OldRun { run_id: row.id()?, session_id: row.id()? });
    db.query(OLD_RUNS, vals![before_ms, limit])?.into_iter().map(read).collect()
}

/// Removes a run, with all that hangs on it, if it ended before a time.
pub fn delete_run(db: &mut dyn Db, run_id: &RunId, session_id: &SessionId, before_ms: u64) -> Result<bool, DbError> {
    db.lock_run(run_id.as_str())?;
    if db.first(IS_OLD, vals![run_id.as_str(), before_ms])?.is_none() {
        return Ok(false);
    }
    let input: Option<RunInput> = db.first(INPUT, vals![run_id.as_str()])?.map(|mut row| row.json()).transpose()?;
    for statement in DELETE {
        match statement.contains("?2") {
            true => db.write(statement, vals![run_id.as_str(), session_id.as_str()])?,
            false => db.write(statement, vals![run_id.as_str()])?,
        }
    }
    // Other runs of the session may name the same files: forks, for one.
    for file in input.into_iter().flat_map(|input| input.files) {
        blobs::forget(db, session_id.as_str(), file.digest.as_str(), before_ms)?;
    }
    Ok(true)
}

/// Sessions without a run that nothing has happened to since a time.
pub fn empty_sessions(db: &mut dyn Db, before_ms: u64, limit: u32) -> Result<Vec<SessionId>, DbError> {
    db.query(EMPTY_SESSIONS, vals![before_ms, limit])?.into_iter().map(|mut row| row.id()).collect()
}
