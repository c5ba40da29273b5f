//! Who may write a session's runs.

use cadre_protocol::ids::{Epoch, SessionId, WorkerId};

use crate::db::{Db, DbError, Row, vals};
use crate::rows::Lease;

const ACQUIRE: &str = "insert into session_leases (session_id, worker_id, registration, epoch, connected, at_ms) \
     values (?1, ?2, ?3, 1, 1, ?4) on conflict (session_id) do update set \
     epoch = case when session_leases.worker_id = excluded.worker_id \
       and session_leases.registration = excluded.registration and session_leases.connected = 1 \
       then session_leases.epoch else session_leases.epoch + 1 end, \
     worker_id = excluded.worker_id, registration = excluded.registration, connected = 1, at_ms = excluded.at_ms \
     returning epoch";
const ACQUIRE_FIRST: &str = "insert into session_leases (session_id, worker_id, registration, epoch, connected, at_ms) \
     values (?1, ?2, ?3, 1, 1, ?4)";
const FENCE: &str = "insert into session_leases (session_id, worker_id, registration, epoch, connected, at_ms) \
     values (?1, '', '', 1, 0, ?2) on conflict (session_id) do update set epoch = session_leases.epoch + 1, \
     connected = 0, at_ms = excluded.at_ms";
const RAISE: &str = "update session_leases set epoch = epoch + 1 where session_id = ?1 returning epoch";
const LEASE: &str = "select worker_id, registration, epoch from session_leases where session_id = ?1 and connected = 1";
const RELEASE: &str = "update session_leases set connected = 0 where session_id = ?1 and worker_id = ?2 \
     and registration = ?3 and epoch = ?4 and connected = 1";

/// Gives the session to a worker process.
pub fn acquire(
    db: &mut dyn Db,
    session_id: &SessionId,
    worker_id: &WorkerId,
    registration: &str,
    at_ms: u64,
) -> Result<Epoch, DbError> {
    let values = vals![session_id.as_str(), worker_id.as_str(), registration, at_ms];
    let mut row = db.first(ACQUIRE, values)?.ok_or_else(|| DbError::Corrupt("a lease was not written".into()))?;
    Ok(Epoch(row.u64()?))
}

/// Gives a session that nobody has had to a worker process.
pub fn acquire_first(
    db: &mut dyn Db,
    session_id: &SessionId,
    worker_id: &WorkerId,
    registration: &str,
    at_ms: u64,
) -> Result<Epoch, DbError> {
    db.write(ACQUIRE_FIRST, vals![session_id.as_str(), worker_id.as_str(), registration, at_ms])?;
    Ok(Epoch(1))
}

/// Takes the session from whoever has it.
pub fn fence(db: &mut dyn Db, session_id: &SessionId, at_ms: u64) -> Result<(), DbError> {
    db.write(FENCE, vals![session_id.as_str(), at_ms])
}

/// Gives whoever has the session the next epoch.
pub fn raise(db: &mut dyn Db, session_id: &SessionId) -> Result<Epoch, DbError> {
    let mut row =
        db.first(RAISE, vals![session_id.as_str()])?.ok_or_else(|| DbError::Corrupt("a lease is missing".into()))?;
    Ok(Epoch(row.u64()?))
}

/// The session's lease, unless it was released.
pub fn lease(db: &mut dyn Db, session_id: &SessionId) -> Result<Option<Lease>, DbError> {
    let Some(mut row) = db.first(LEASE, vals![session_id.as_str()])? else { return Ok(None) };
    Ok(Some(Lease { worker_id: row.id()?, registration: row.text()?, epoch: Epoch(row.u64()?) }))
}

/// A session's lease as a join finds it.
pub enum Joined {
    /// Nobody has had the session.
    None,
    /// It was released, or taken from whoever had it.
    Released,
    /// Somebody has it.
    Current(Lease),
}

/// Reads worker, registration, epoch and whether it is not released, or four times NULL.
pub fn joined(row: &mut Row) -> Result<Joined, DbError> {
    let Some(worker_id) = row.opt_text()? else { return Ok(Joined::None) };
    let (registration, epoch, connected) = (row.text()?, Epoch(row.u64()?), row.bool()?);
    if !connected {
        return Ok(Joined::Released);
    }
    let worker_id = WorkerId::try_from(worker_id);
    let worker_id = worker_id.map_err(|_| DbError::Corrupt("a lease names no valid worker".into()))?;
    Ok(Joined::Current(Lease { worker_id, registration, epoch }))
}

/// Whether this is the session's lease.
pub fn is_current(db: &mut dyn Db, session_id: &SessionId, wanted: &Lease) -> Result<bool, DbError> {
    Ok(lease(db, session_id)?.as_ref() == Some(wanted))
}

/// Releases the lease if it is still this one and not released; answers whether it was.
pub fn release(db: &mut dyn Db, session_id: &SessionId, lease: &Lease) -> Result<bool, DbError> {
    let values = vals![session_id.as_str(), lease.worker_id.as_str(), &lease.registration, lease.epoch.0];
    Ok(db.execute(RELEASE, values)? > 0)
}
