//! A copy of a session, made by the database itself: no row passes through this program.
//!
//! Ids of the copied runs are made from a random prefix and the run's place in its session. Journals stay with the source,
//! so messages and calls get numbers below zero, as those of forked runs have.

use cadre_protocol::ids::SessionId;

use crate::branches::{SessionFork, SessionForkOutcome};
use crate::db::{Db, DbError, vals};
use crate::ops::allowances::Allowances;
use crate::ops::blobs;
use crate::rows::Principal;

const JOURNALS: &str = "select count(*), cast(coalesce(sum((select e.run_bytes from events e where e.run_id = r.run_id \
     order by e.first_index desc limit 1)), 0) as bigint) from runs r where r.session_id = ?1 \
     and r.finished_at_ms is not null and r.principal = coalesce(?2, r.principal)";
const FILES: &str = "select cast(coalesce(sum(size), 0) as bigint), max(namespace) from blobs where session_id = ?1";
const SESSION: &str = "insert into sessions (session_id, kind, namespace, name, principal, user_id, title, state, metadata, \
     summary, next_seq, created_at_ms, updated_at_ms) select cast(?2 as text), kind, namespace, name, principal, \
     coalesce(cast(?3 as text), user_id), title, state, metadata, summary, next_seq, cast(?4 as bigint), cast(?4 as bigint) \
     from sessions where session_id = ?1";
/// A reference to a run of the same session becomes one to its copy.
const RUNS: &str = "insert into runs (run_id, session_id, seq, kind, namespace, name, principal, user_id, status, revision, \
     attempt, epoch, timeout_seconds, created_at_ms, started_at_ms, finished_at_ms, cancel_requested, cancellation_stage, \
     metrics, metadata, input, files, content, content_type, failure, retries, base_seq, forked_from_run_id, \
     forked_from_message_index, forked_from_session_id, regenerated_from) \
     select cast(?3 as text) || '-' || cast(r.seq as text), cast(?2 as text), r.seq, r.kind, r.namespace, r.name, \
     r.principal, coalesce(cast(?4 as text), r.user_id), r.status, r.revision, r.attempt, 0, r.timeout_seconds, \
     r.created_at_ms, r.started_at_ms, r.finished_at_ms, r.cancel_requested, r.cancellation_stage, r.metrics, r.metadata, \
     r.input, r.files, r.content, r.content_type, r.failure, r.retries, r.base_seq, \
     coalesce((select cast(?3 as text) || '-' || cast(f.seq as text) from runs f where f.run_id = r.forked_from_run_id \
       and f.session_id = r.session_id), r.forked_from_run_id), r.forked_from_message_index, \
     coalesce(r.forked_from_session_id, r.session_id), \
     coalesce((select cast(?3 as text) || '-' || cast(g.seq as text) from runs g where g.run_id = r.regenerated_from \
       and g.session_id = r.session_id), r.regenerated_from) \
     from runs r where r.session_id = ?1 and r.finished_at_ms is not null";
const MESSAGES: &str = "insert into messages (run_id, position, session_id, role, body) \
     select cast(?3 as text) || '-' || cast(r.seq as text), m.position - ?4, cast(?2 as text), m.role, m.body \
     from runs r join messages m on m.run_id = r.run_id where r.session_id = ?1 and r.finished_at_ms is not null";
const CALLS: &str = "insert into tool_calls (run_id, call_id, position, session_id, run_seq, idempotent, finished, \
     finished_index, unknown_outcome, tool_name, effect, body) \
     select cast(?3 as text) || '-' || cast(r.seq as text), c.call_id, c.position - ?4, cast(?2 as text), c.run_seq, \
     c.idempotent, c.finished, c.finished_index, c.unknown_outcome, c.tool_name, c.effect, c.body \
     from runs r join tool_calls c on c.run_id = r.run_id where r.session_id = ?1 and r.finished_at_ms is not null";
const BLOBS: &str = "insert into blobs (session_id, namespace, digest, size, created_at_ms) \
     select cast(?2 as text), namespace, digest, size, cast(?3 as bigint) from blobs where session_id = ?1";
const CHUNKS: &str = "insert into blob_chunks (session_id, digest, chunk, bytes) \
     select cast(?2 as text), digest, chunk, bytes from blob_chunks where session_id = ?1";

/// More than any journal has entries.
const BELOW_ZERO: i64 = 1 << 40;

/// Copies the session.
pub fn fork_session(db: &mut dyn Db, allowed: &Allowances, fork: &SessionFork) -> Result<SessionForkOutcome, DbError> {
    let SessionFork { source, principal, session_id, run_prefix, user_id, max_namespace_bytes, at_ms } = fork;
    let (from, to) = (source.as_str(), session_id.as_str());
    db.lock_session(from)?;
    let Size { runs, journals, files, namespace } = size(db, source, principal.as_ref())?;
    if runs == 0 {
        return Ok(SessionForkOutcome::Empty);
    }
    if runs > SessionFork::MAX_RUNS || journals.saturating_add(files) > SessionFork::MAX_BYTES {
        return Ok(SessionForkOutcome::TooLarge);
    }
    if files > 0 && !blobs::has_room(db, allowed, &namespace, files, *max_namespace_bytes, *at_ms)? {
        return Ok(SessionForkOutcome::NamespaceFull);
    }
    db.write(SESSION, vals![from, to, user_id.as_ref(), *at_ms])?;
    db.write(RUNS, vals![from, to, run_prefix, user_id.as_ref()])?;
    db.write(MESSAGES, vals![from, to, run_prefix, BELOW_ZERO])?;
    db.write(CALLS, vals![from, to, run_prefix, BELOW_ZERO])?;
    db.write(BLOBS, vals![from, to, *at_ms])?;
    db.write(CHUNKS, vals![from, to])?;
    Ok(SessionForkOutcome::Forked { runs })
}

/// What would be copied.
struct Size {
    /// Runs that have ended.
    runs: u64,
    /// Bytes of their journals.
    journals: u64,
    /// Bytes of the session's files.
    files: u64,
    /// Whose these are.
    namespace: String,
}

fn size(db: &mut dyn Db, source: &SessionId, of: Option<&Principal>) -> Result<Size, DbError> {
    let (runs, journals) = match db.first(JOURNALS, vals![source.as_str(), of.map(|owner| &owner.0)])? {
        Some(mut row) => (row.u64()?, row.u64()?),
        None => (0, 0),
    };
    let (files, namespace) = match db.first(FILES, vals![source.as_str()])? {
        Some(mut row) => (row.u64()?, row.opt_text()?.unwrap_or_default()),
        None => (0, String::new()),
    };
    Ok(Size { runs, journals, files, namespace })
}
