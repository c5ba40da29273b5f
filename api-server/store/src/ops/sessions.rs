//! Sessions: lists, names, and their end with all that belongs to them.

use cadre_protocol::ids::SessionId;

use crate::db::{Db, DbError, vals};
use crate::ops::columns::{self, session_columns};
use crate::rows::{Principal, SessionRow};

const SESSION: &str = concat!("select ", session_columns!(), " from sessions where session_id = ?1");
const ALL: &str = concat!(
    "select ",
    session_columns!(),
    " from sessions order by created_at_ms desc, session_id desc limit ?1 offset ?2"
);
const OF_PRINCIPAL: &str = concat!(
    "select ",
    session_columns!(),
    " from sessions where principal = ?3 order by created_at_ms desc, session_id desc limit ?1 offset ?2"
);
const COUNT: &str = "select count(*) from sessions";
const COUNT_OF_PRINCIPAL: &str = "select count(*) from sessions where principal = ?1";
const RENAME: &str = "update sessions set title = ?2, updated_at_ms = ?3 where session_id = ?1";
const UNFINISHED: &str = "select 1 from runs where session_id = ?1 and finished_at_ms is null limit 1";

/// Removes a session's rows, those that hang on its runs first.
const DELETE: [&str; 10] = [
    "delete from events where run_id in (select run_id from runs where session_id = ?1)",
    "delete from messages where run_id in (select run_id from runs where session_id = ?1)",
    "delete from tool_calls where run_id in (select run_id from runs where session_id = ?1)",
    "delete from model_calls where run_id in (select run_id from runs where session_id = ?1)",
    "delete from idempotency_keys where session_id = ?1",
    "delete from blob_chunks where session_id = ?1",
    "delete from blobs where session_id = ?1",
    "delete from session_leases where session_id = ?1",
    "delete from runs where session_id = ?1",
    "delete from sessions where session_id = ?1",
];

/// Most rows of a list.
const MAX_LIST: u64 = 1_000;

/// The session.
pub fn session(db: &mut dyn Db, session_id: &SessionId) -> Result<Option<SessionRow>, DbError> {
    db.first(SESSION, vals![session_id.as_str()])?.map(|mut row| columns::session(&mut row)).transpose()
}

/// Sessions, newest first, with the number of all.
pub fn sessions(
    db: &mut dyn Db,
    principal: Option<&Principal>,
    offset: u64,
    limit: u64,
) -> Result<(Vec<SessionRow>, u64), DbError> {
    let limit = limit.min(MAX_LIST);
    let (rows, total) = match principal {
        None => (db.query(ALL, vals![limit, offset])?, db.first(COUNT, vals![])?),
        Some(Principal(text)) => {
            (db.query(OF_PRINCIPAL, vals![limit, offset, text])?, db.first(COUNT_OF_PRINCIPAL, vals![text])?)
        }
    };
    let sessions = rows.into_iter().map(|mut row| columns::session(&mut row)).collect::<Result<_, _>>()?;
    Ok((sessions, total.map_or(Ok(0), |mut row| row.u64())?))
}

/// Sets the name.
pub fn rename(db: &mut dyn Db, session_id: &SessionId, name: &str, at_ms: u64) -> Result<Option<SessionRow>, DbError> {
    db.write(RENAME, vals![session_id.as_str(), name, at_ms])?;
    session(db, session_id)
}

/// Removes a session unless a run of it is unfinished.
pub fn delete(db: &mut dyn Db, session_id: &SessionId) -> Result<bool, DbError> {
    let id = session_id.as_str();
    db.lock_session(id)?;
    if session(db, session_id)?.is_none() || db.first(UNFINISHED, vals![id])?.is_some() {
        return Ok(false);
    }
    for statement in DELETE {
        db.write(statement, vals![id])?;
    }
    Ok(true)
}
