//! Cancels that come before their runs: a run that is later accepted under such an id ends at once.

use cadre_protocol::ids::RunId;

use crate::db::{Db, DbError, vals};
use crate::ops::accept::{self, Accept};
use crate::ops::cancel;
use crate::ops::queries;
use crate::ops::snapshots::Snapshots;
use crate::rows::{AcceptOutcome, Principal};

const EXISTS: &str = "select 1 from runs where run_id = ?1";
const INSERT: &str = "insert into cancel_intents (run_id, principal, expires_at_ms) values (?1, ?2, ?3) \
     on conflict (run_id, principal) do update set expires_at_ms = excluded.expires_at_ms";
const COUNT: &str = "select count(*) from (select 1 from cancel_intents where principal = ?1 limit ?2) as kept";
const OLDEST: &str = "delete from cancel_intents where principal = ?1 and run_id = (select run_id from cancel_intents \
     where principal = ?1 order by expires_at_ms limit 1)";
const FIND: &str =
    "select 1 from cancel_intents where run_id = ?1 and principal in ('', ?2) and expires_at_ms > ?3 limit 1";
const FORGET: &str = "delete from cancel_intents where run_id = ?1 and principal in ('', ?2)";

/// Most intents of one principal; the oldest goes for a new one.
const MAX_INTENTS: u64 = 10_000;
/// What streams of such a run say.
const REASON: &str = "cancelled before it was accepted";

/// Remembers a cancel. False when there is such a run.
pub fn remember(
    db: &mut dyn Db,
    run_id: &RunId,
    principal: Option<&Principal>,
    expires_at_ms: u64,
) -> Result<bool, DbError> {
    let id = run_id.as_str();
    db.lock_name(id)?;
    if db.first(EXISTS, vals![id])?.is_some() {
        return Ok(false);
    }
    let principal = principal.map_or("", |principal| principal.0.as_str());
    let count = db.first(COUNT, vals![principal, MAX_INTENTS])?.map_or(Ok(0), |mut row| row.u64())?;
    if count >= MAX_INTENTS {
        db.write(OLDEST, vals![principal])?;
    }
    db.write(INSERT, vals![id, principal, expires_at_ms])?;
    Ok(true)
}

/// Accepts a run whose id its caller has chosen.
pub fn accept(db: &mut dyn Db, snapshots: &Snapshots, accept: &Accept) -> Result<AcceptOutcome, DbError> {
    let run = accept.run();
    let (id, principal) = (run.run_id.as_str(), run.principal.0.as_str());
    db.lock_name(id)?;
    let is_meant = db.first(FIND, vals![id, principal, run.at_ms])?.is_some();
    let outcome = accept::accept(db, accept, is_meant)?;
    if !is_meant || !matches!(outcome, AcceptOutcome::Accepted { .. }) {
        return Ok(outcome);
    }
    db.write(FORGET, vals![id, principal])?;
    cancel::cancel(db, snapshots, &run.run_id, None, REASON, run.at_ms)?;
    let ended = queries::run(db, &run.run_id, None)?;
    let ended = ended.ok_or_else(|| DbError::Corrupt("a run that was accepted is missing".into()))?;
    Ok(AcceptOutcome::Accepted { run: Box::new(ended), waiting_on: None, started: None })
}
