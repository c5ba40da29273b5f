//! Which replicas live, and which workers are connected to them. Times are the database's: replicas' clocks may differ.

use cadre_protocol::ids::{SessionId, WorkerId};

use crate::db::{Db, DbError, Row, vals};
use crate::ops::leases;
use crate::rows::Lease;
use crate::workers::{Departure, Isolation, PlacedRun, ReplicaId, WorkerRow};

const BEAT: &str = "insert into replicas (replica_id, seen_at_ms) values (?1, ?2) \
     on conflict (replica_id) do update set seen_at_ms = excluded.seen_at_ms";
const FORGET_REPLICAS: &str = "delete from replicas where seen_at_ms < ?1 \
     and not exists (select 1 from workers w where w.replica_id = replicas.replica_id)";
const FIND: &str = "select registration, replica_id from workers where worker_id = ?1";
const REGISTER: &str = "insert into workers (worker_id, registration, replica_id, session_id) values (?1, ?2, ?3, ?4) \
     on conflict (worker_id) do update set registration = excluded.registration, replica_id = excluded.replica_id, \
     session_id = excluded.session_id, isolated = null, detail = null";
const REMOVE: &str = "delete from workers where worker_id = ?1 and registration = ?2";
const LEASE_OF_SESSION: &str = "update session_leases set connected = 0 where session_id = ?1 and worker_id = ?2 \
     and registration <> ?3";
const ISOLATION: &str = "update workers set isolated = ?3, detail = ?4 where worker_id = ?1 and registration = ?2";
const ISOLATIONS: &str =
    "select worker_id, isolated, detail from workers where isolated is not null order by worker_id";
/// A run that may want a worker: one that waits for a person wants none, nor do those behind it.
const OPEN: &str = "select 1 from runs r where r.session_id = ?1 and r.finished_at_ms is null and not exists \
     (select 1 from runs p where p.session_id = r.session_id and p.finished_at_ms is null and p.status = 'PAUSED' \
     and p.seq <= r.seq) limit 1";
const ELSEWHERE: &str = "select 1 from workers w join replicas p on p.replica_id = w.replica_id \
     where w.session_id = ?1 and w.replica_id <> ?2 and p.seen_at_ms >= ?3 limit 1";
const RELEASE_SESSION: &str = "update session_leases set connected = 0 where session_id = ?1";
const HOLDER: &str = "select 1 from session_leases l join workers w on w.worker_id = l.worker_id \
     and w.registration = l.registration join replicas p on p.replica_id = w.replica_id \
     where l.session_id = ?1 and l.connected = 1 and w.replica_id <> ?2 and p.seen_at_ms >= ?3 limit 1";

/// Columns of [`placed`].
macro_rules! placed_runs {
    () => {
        "select r.run_id, r.session_id, r.kind, r.namespace, r.name, r.status, r.created_at_ms, r.cancel_requested, \
         l.worker_id, l.registration, l.epoch from runs r \
         join session_leases l on l.session_id = r.session_id and l.connected = 1"
    };
}

const OF_WORKER: &str = concat!(
    placed_runs!(),
    " where r.finished_at_ms is null and r.status = 'RUNNING' and l.worker_id = ?1 order by r.session_id"
);
const AT_REPLICA: &str = concat!(
    placed_runs!(),
    " join workers w on w.worker_id = l.worker_id and w.registration = l.registration \
     where r.finished_at_ms is null and r.status = 'RUNNING' and w.replica_id = ?1 order by r.session_id"
);
const LOST: &str = concat!(
    placed_runs!(),
    " left join workers w on w.worker_id = l.worker_id and w.registration = l.registration \
     left join replicas p on p.replica_id = w.replica_id where r.finished_at_ms is null and r.status = 'RUNNING' \
     and (w.worker_id is null or (w.replica_id <> ?1 and (p.replica_id is null or p.seen_at_ms < ?2))) \
     order by l.worker_id, r.session_id"
);
const STILL_THERE: &str = "select 1 from workers w left join replicas p on p.replica_id = w.replica_id \
     where w.worker_id = ?1 and w.registration = ?2 and (w.replica_id = ?3 or p.seen_at_ms >= ?4)";
const FORGET_WORKERS: &str = "delete from workers where replica_id <> ?1 and not exists \
     (select 1 from replicas p where p.replica_id = workers.replica_id and p.seen_at_ms >= ?2)";

/// Dead replicas without a worker are forgotten after this many milliseconds.
const FORGET_AFTER_MS: u64 = 3_600_000;

/// The replica lives.
pub fn beat(db: &mut dyn Db, replica: &ReplicaId) -> Result<(), DbError> {
    let now = db.now_ms()?;
    db.write(FORGET_REPLICAS, vals![now.saturating_sub(FORGET_AFTER_MS)])?;
    db.write(BEAT, vals![&replica.0, now])
}

/// A worker process is connected to a replica. What another process of it had is free.
pub fn register(db: &mut dyn Db, worker: &WorkerRow) -> Result<(), DbError> {
    let WorkerRow { worker_id, registration, replica, session_id } = worker;
    db.lock_worker(worker_id.as_str())?;
    for run in of_worker(db, worker_id)?.iter().filter(|run| run.lease.registration != *registration) {
        leases::release(db, &run.session_id, &run.lease)?;
    }
    if let Some(session_id) = session_id {
        db.write(LEASE_OF_SESSION, vals![session_id.as_str(), worker_id.as_str(), registration])?;
    }
    let session = session_id.as_ref().map(SessionId::as_str);
    db.write(REGISTER, vals![worker_id.as_str(), registration, &replica.0, session])
}

/// A worker process has left a replica, which releases what it runs, unless it has gone to another.
pub fn leave(
    db: &mut dyn Db,
    worker_id: &WorkerId,
    registration: &str,
    replica: &ReplicaId,
) -> Result<Departure, DbError> {
    db.lock_worker(worker_id.as_str())?;
    let departure = match find(db, worker_id)? {
        Some((process, _)) if process != registration => Departure::Replaced,
        Some((_, at)) if at != *replica => return Ok(Departure::Moved),
        Some(_) | None => Departure::Lost,
    };
    for run in of_worker(db, worker_id)?.iter().filter(|run| run.lease.registration == *registration) {
        leases::release(db, &run.session_id, &run.lease)?;
    }
    db.write(REMOVE, vals![worker_id.as_str(), registration])?;
    Ok(departure)
}

/// Whether a worker process is at a replica.
pub fn is_at(db: &mut dyn Db, worker_id: &WorkerId, registration: &str, replica: &ReplicaId) -> Result<bool, DbError> {
    Ok(find(db, worker_id)?.is_some_and(|(process, at)| process == registration && at == *replica))
}

/// The process of a worker, and the replica that it is connected to.
fn find(db: &mut dyn Db, worker_id: &WorkerId) -> Result<Option<(String, ReplicaId)>, DbError> {
    let row = db.first(FIND, vals![worker_id.as_str()])?;
    row.map(|mut row| Ok((row.text()?, ReplicaId(row.text()?)))).transpose()
}

/// Whether an idle session may lose its worker: no run of it wants one, and no other replica that lives has its worker.
/// If so, the lease is released: no later run starts with that worker.
pub fn retire(db: &mut dyn Db, session_id: &SessionId, replica: &ReplicaId, silent_ms: u64) -> Result<bool, DbError> {
    let session = session_id.as_str();
    // Acceptance takes the same lock.
    db.lock_session(session)?;
    let since = db.now_ms()?.saturating_sub(silent_ms);
    if db.first(OPEN, vals![session])?.is_some() || db.first(ELSEWHERE, vals![session, &replica.0, since])?.is_some() {
        return Ok(false);
    }
    db.write(RELEASE_SESSION, vals![session])?;
    Ok(true)
}

/// Whether the session's lease is with a worker that another replica has, which lives.
pub fn is_elsewhere(
    db: &mut dyn Db,
    session_id: &SessionId,
    replica: &ReplicaId,
    silent_ms: u64,
) -> Result<bool, DbError> {
    let since = db.now_ms()?.saturating_sub(silent_ms);
    Ok(db.first(HOLDER, vals![session_id.as_str(), &replica.0, since])?.is_some())
}

/// Runs that a worker should be executing, whichever process of it.
pub fn of_worker(db: &mut dyn Db, worker_id: &WorkerId) -> Result<Vec<PlacedRun>, DbError> {
    db.query(OF_WORKER, vals![worker_id.as_str()])?.iter_mut().map(placed).collect()
}

/// Runs that a replica's workers should be executing.
pub fn at_replica(db: &mut dyn Db, replica: &ReplicaId) -> Result<Vec<PlacedRun>, DbError> {
    db.query(AT_REPLICA, vals![&replica.0])?.iter_mut().map(placed).collect()
}

/// Releases the runs of workers that nobody has seen for a while, and answers those that were released by this call.
pub fn release_lost(db: &mut dyn Db, replica: &ReplicaId, silent_ms: u64) -> Result<Vec<PlacedRun>, DbError> {
    let since = db.now_ms()?.saturating_sub(silent_ms);
    let mut released = Vec::new();
    for mut row in db.query(LOST, vals![&replica.0, since])? {
        let run = placed(&mut row)?;
        let (worker_id, registration) = (run.lease.worker_id.as_str(), run.lease.registration.as_str());
        // It may just have dialled in.
        db.lock_worker(worker_id)?;
        let still_there = db.first(STILL_THERE, vals![worker_id, registration, &replica.0, since])?.is_some();
        if !still_there && leases::release(db, &run.session_id, &run.lease)? {
            released.push(run);
        }
    }
    db.write(FORGET_WORKERS, vals![&replica.0, since])?;
    Ok(released)
}

/// Keeps what a worker says of its network.
pub fn isolation(db: &mut dyn Db, registration: &str, report: &Isolation) -> Result<(), DbError> {
    let Isolation { worker_id, isolated, detail } = report;
    db.write(ISOLATION, vals![worker_id.as_str(), registration, *isolated, detail])
}

/// What connected workers have said of their networks.
pub fn isolations(db: &mut dyn Db) -> Result<Vec<Isolation>, DbError> {
    let read = |mut row: Row| {
        Ok(Isolation { worker_id: row.id()?, isolated: row.bool()?, detail: row.opt_text()?.unwrap_or_default() })
    };
    db.query(ISOLATIONS, vals![])?.into_iter().map(read).collect()
}

fn placed(row: &mut Row) -> Result<PlacedRun, DbError> {
    let waiting = super::queries::waiting_row(row)?;
    Ok(PlacedRun {
        session_id: waiting.session_id.clone(),
        cancel_requested: row.bool()?,
        lease: Lease { worker_id: row.id()?, registration: row.text()?, epoch: cadre_protocol::ids::Epoch(row.u64()?) },
        waiting,
    })
}
