//! Runs as jobs of a queue.

use std::collections::HashMap;

use cadre_protocol::ids::{Revision, RunId};

use crate::db::{Db, DbError, Row, Val, vals};
use crate::ops::columns::{self, run_columns};
use crate::ops::snapshots::Snapshots;
use crate::rows::jobs::{JobFilter, JobOrder, JobRow};

const JOBS: &str = concat!(
    "select ",
    run_columns!(),
    ", r.seq, (select k.idem_key from idempotency_keys k where k.session_id = r.session_id and k.run_id = r.run_id \
     limit 1), l.worker_id, l.at_ms from runs r \
     left join session_leases l on l.session_id = r.session_id and l.epoch = r.epoch and r.status = 'RUNNING'"
);
const COUNT: &str = "select count(*) from runs r";

/// Most rows of a list.
const MAX_LIST: u64 = 1_000;

/// The job of a run.
pub fn job(db: &mut dyn Db, snapshots: &Snapshots, run_id: &RunId) -> Result<Option<JobRow>, DbError> {
    let row = db.first(&format!("{JOBS} where r.run_id = ?1"), vals![run_id.as_str()])?;
    row.map(|row| Attempts::default().read(db, snapshots, row)).transpose()
}

/// A page of the jobs that match, with the number of all.
pub fn jobs(db: &mut dyn Db, snapshots: &Snapshots, filter: &JobFilter) -> Result<(Vec<JobRow>, u64), DbError> {
    let JobFilter { statuses, session_ids, user_id, order, ascending, offset, limit } = filter;
    let mut clauses: Vec<String> = Vec::new();
    let mut values: Vec<Val<'_>> = Vec::new();
    if !statuses.is_empty() {
        clauses.push(one_of("r.status", statuses.iter().map(|status| status.as_str()), &mut values));
    }
    if !session_ids.is_empty() {
        clauses.push(one_of("r.session_id", session_ids.iter().map(|id| id.as_str()), &mut values));
    }
    if let Some(user_id) = user_id {
        clauses.push(one_of("r.user_id", std::iter::once(user_id.as_str()), &mut values));
    }
    let condition = if clauses.is_empty() { String::new() } else { format!(" where {}", clauses.join(" and ")) };
    let total = db.first(&format!("{COUNT}{condition}"), &values)?;
    let total = total.map_or(Ok(0), |mut row| row.u64())?;
    let (limit_at, offset_at) = (values.len() + 1, values.len() + 2);
    values.extend([Val::from((*limit).min(MAX_LIST)), Val::from(*offset)]);
    let order = order_by(*order, *ascending);
    let rows = db.query(&format!("{JOBS}{condition} {order} limit ?{limit_at} offset ?{offset_at}"), &values)?;
    let mut attempts = Attempts::default();
    let jobs = rows.into_iter().map(|row| attempts.read(db, snapshots, row)).collect::<Result<_, _>>()?;
    Ok((jobs, total))
}

/// Repeats the last text up to a power of two, so that there are few different statements.
fn one_of<'a>(column: &str, wanted: impl Iterator<Item = &'a str>, values: &mut Vec<Val<'a>>) -> String {
    let mut wanted: Vec<&str> = wanted.collect();
    if let Some(last) = wanted.last().copied() {
        wanted.resize(wanted.len().next_power_of_two(), last);
    }
    let mut places = Vec::new();
    for text in wanted {
        values.push(Val::Text(text));
        places.push(format!("?{}", values.len()));
    }
    format!("{column} in ({})", places.join(", "))
}

fn order_by(order: JobOrder, ascending: bool) -> String {
    let column = match order {
        JobOrder::Created => "r.created_at_ms",
        JobOrder::Updated => "coalesce(r.finished_at_ms, r.started_at_ms, r.created_at_ms)",
    };
    let direction = if ascending { "asc" } else { "desc" };
    format!("order by {column} {direction}, r.run_id {direction}")
}

/// Attempts that agents allow, by their revision.
#[derive(Default)]
struct Attempts(HashMap<Revision, u32>);

impl Attempts {
    fn read(&mut self, db: &mut dyn Db, snapshots: &Snapshots, mut row: Row) -> Result<JobRow, DbError> {
        let run = columns::run(&mut row)?;
        let (seq, idempotency_key, worker, at_ms) = (row.u64()?, row.opt_text()?, row.opt_text()?, row.opt_u64()?);
        let worker = worker.map(cadre_protocol::ids::WorkerId::try_from).transpose();
        let worker = worker.map_err(|_| DbError::Corrupt("a column holds no valid identifier".into()))?;
        let max_attempts = self.of(db, snapshots, &run.revision)?;
        Ok(JobRow { run, seq, max_attempts, idempotency_key, lease: worker.zip(at_ms) })
    }

    fn of(&mut self, db: &mut dyn Db, snapshots: &Snapshots, revision: &Revision) -> Result<u32, DbError> {
        if let Some(known) = self.0.get(revision) {
            return Ok(*known);
        }
        let allowed = snapshots.load(db, revision)?.retry.retries.saturating_add(1);
        self.0.insert(revision.clone(), allowed);
        Ok(allowed)
    }
}
