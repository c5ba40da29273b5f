//! A session by its id, and its end with all that belongs to it.

use cadre_protocol::ids::SessionId;

use crate::db::{Db, DbError, vals};
use crate::ops::columns::{self, session_columns};
use crate::rows::{Principal, SessionRow};

const SESSION: &str = concat!(
    "select ",
    session_columns!(),
    " from sessions where session_id = ?1 and principal = coalesce(?2, principal)"
);
const UNFINISHED: &str = "select 1 from runs where session_id = ?1 and finished_at_ms is null limit 1";

/// Removes a session's rows, those that hang on its runs first.
const DELETE: [&str; 12] = [
    "delete from events where run_id in (select run_id from runs where session_id = ?1)",
    "delete from messages where run_id in (select run_id from runs where session_id = ?1)",
    "delete from tool_calls where run_id in (select run_id from runs where session_id = ?1)",
    "delete from approvals where run_id in (select run_id from runs where session_id = ?1)",
    "delete from model_calls where run_id in (select run_id from runs where session_id = ?1)",
    "delete from call_reserves where run_id in (select run_id from runs where session_id = ?1)",
    "delete from idempotency_keys where session_id = ?1",
    "delete from blob_chunks where session_id = ?1",
    "delete from blobs where session_id = ?1",
    "delete from session_leases where session_id = ?1",
    "delete from runs where session_id = ?1",
    "delete from sessions where session_id = ?1",
];

/// The session; where an owner is named, only if it is theirs.
pub fn session(db: &mut dyn Db, session_id: &SessionId, of: Option<&Principal>) -> Result<Option<SessionRow>, DbError> {
    let values = vals![session_id.as_str(), of.map(|owner| &owner.0)];
    db.first(SESSION, values)?.map(|mut row| columns::session(&mut row)).transpose()
}

/// Removes a session unless a run of it is unfinished; where an owner is named, only if it is theirs.
pub fn delete(db: &mut dyn Db, session_id: &SessionId, of: Option<&Principal>) -> Result<bool, DbError> {
    let id = session_id.as_str();
    db.lock_session(id)?;
    if session(db, session_id, of)?.is_none() || db.first(UNFINISHED, vals![id])?.is_some() {
        return Ok(false);
    }
    for statement in DELETE {
        db.write(statement, vals![id])?;
    }
    Ok(true)
}
