//! What is only read.

use cadre_protocol::feed::AgentReport;
use cadre_protocol::ids::{ComponentRef, RunId, SessionId};
use cadre_protocol::run::RunStatus;

use crate::db::{Db, DbError, Row, Val, vals};
use crate::ops::columns::{self, run_columns};
use crate::ops::snapshots::Snapshots;
use crate::ops::{pause, start};
use crate::rows::{AgentLoad, Ends, EventChunk, Principal, QueueStats, RunDetail, RunFilter, RunRow, Waiting};

const RUN: &str = concat!(
    "select ",
    run_columns!(),
    ", r.seq from runs r where r.run_id = ?1 \
     and r.principal = coalesce(?2, r.principal)"
);
const RUN_OF_OBJECT: &str =
    concat!("select ", run_columns!(), " from runs r where r.namespace = ?1 and r.object_uid = ?2");
const RUNS: &str = concat!("select ", run_columns!(), " from runs r");
const TRACE_PARENT: &str = "select trace_parent from runs where run_id = ?1";
const SESSION_OF: &str = "select session_id from runs where run_id = ?1";
const BEFORE: &str = "select before.run_id from runs r join runs before on before.session_id = r.session_id \
     and before.seq < r.seq and before.finished_at_ms is null where r.run_id = ?1 and r.status = 'PENDING' \
     order by before.seq desc limit 1";
/// Heads of lines without a connected worker.
macro_rules! waiting_runs {
    () => {
        "select r.run_id, r.session_id, r.kind, r.namespace, r.name, r.status, r.created_at_ms from runs r \
         left join session_leases l on l.session_id = r.session_id where r.finished_at_ms is null \
         and ((r.status = 'PENDING' and coalesce(r.slot, 1) = 1) \
         or (r.status = 'RUNNING' and coalesce(l.connected, 0) = 0)) \
         and not exists (select 1 from runs b where b.session_id = r.session_id and b.finished_at_ms is null \
         and b.seq < r.seq)"
    };
}
/// Namespaces take turns, so that a busy one does not fill the page.
const WAITING: &str = concat!(
    waiting_runs!(),
    " order by row_number() over (partition by r.namespace order by r.created_at_ms, r.run_id), \
     r.created_at_ms, r.run_id limit ?1"
);
const WAITING_RUN: &str = concat!(waiting_runs!(), " and r.run_id = ?1");
const WAITING_IN: &str = concat!(waiting_runs!(), " and r.session_id = ?1");
const OPEN: &str = "select status, count(*), min(created_at_ms) from runs where finished_at_ms is null group by status";
const WAITING_COUNT: &str = "select count(*) from runs where finished_at_ms is null and status = 'PENDING'";
const FINISHED: &str = "select status, count(*) from runs where finished_at_ms is not null group by status";
const AGENTS: &str = "select distinct kind, namespace, name from revisions order by namespace, name, kind";
const OPEN_OF_AGENTS: &str = "select kind, namespace, name, status, count(*) from runs where finished_at_ms is null \
     group by kind, namespace, name, status";
const LAST_OF_AGENT: &str = "select run_id, status from runs where namespace = ?1 and name = ?2 and kind = ?3 \
     and finished_at_ms is not null order by finished_at_ms desc limit 1";
// Bounded in entries by the index, so that no page walks the whole journal, and in bytes before the rows are fetched.
const EVENTS: &str = "select first_index, next_index, frames from events where run_id = ?1 and first_index >= \
     coalesce((select max(first_index) from events where run_id = ?1 and first_index <= ?2), 0) \
     and first_index < ?3 and next_index > ?2 and run_bytes <= ?4 + coalesce((select run_bytes from events \
     where run_id = ?1 and first_index <= ?2 order by first_index desc limit 1), 0) order by first_index";

/// Most entries read with one statement.
const EVENTS_PAGE: u64 = 1_024;
/// Far above what a journal may hold, and far below what the database can add up.
const ALL_BYTES: usize = 1 << 40;

/// Most rows of a list.
const MAX_LIST: u64 = 1_000;

/// The run.
pub fn run(db: &mut dyn Db, run_id: &RunId, of: Option<&Principal>) -> Result<Option<RunRow>, DbError> {
    db.first(RUN, vals![run_id.as_str(), of.map(|owner| &owner.0)])?.map(|mut row| columns::run(&mut row)).transpose()
}

/// The session of a run.
pub fn session_of(db: &mut dyn Db, run_id: &RunId) -> Result<Option<SessionId>, DbError> {
    db.first(SESSION_OF, vals![run_id.as_str()])?.map(|mut row| row.id()).transpose()
}

/// The span that the run's caller named.
pub fn trace_parent(db: &mut dyn Db, run_id: &RunId) -> Result<Option<String>, DbError> {
    db.first(TRACE_PARENT, vals![run_id.as_str()])?.map_or(Ok(None), |mut row| row.opt_text())
}

/// The run that a Run object made.
pub fn run_of_object(db: &mut dyn Db, namespace: &str, uid: &str) -> Result<Option<RunRow>, DbError> {
    db.first(RUN_OF_OBJECT, vals![namespace, uid])?.map(|mut row| columns::run(&mut row)).transpose()
}

/// The run with all that belongs to it.
pub fn detail(
    db: &mut dyn Db,
    snapshots: &Snapshots,
    run_id: &RunId,
    of: Option<&Principal>,
) -> Result<Option<RunDetail>, DbError> {
    let Some(run) = run(db, run_id, of)? else { return Ok(None) };
    Ok(Some(RunDetail {
        messages: start::messages(db, run_id)?,
        tools: start::tool_calls(db, run_id)?,
        session_state: start::session_state(db, &run.session_id)?,
        agent: snapshots.load(db, &run.revision)?,
        waiting_on: if run.status == RunStatus::Pending { waiting_on(db, run_id)? } else { None },
        approvals: pause::of_run(db, run_id)?,
        run,
    }))
}

/// While PENDING: the run before it in its line.
pub fn waiting_on(db: &mut dyn Db, run_id: &RunId) -> Result<Option<RunId>, DbError> {
    db.first(BEFORE, vals![run_id.as_str()])?.map(|mut row| row.id()).transpose()
}

/// Heads of lines without a connected worker.
pub fn waiting(db: &mut dyn Db, limit: u32) -> Result<Vec<Waiting>, DbError> {
    db.query(WAITING, vals![limit])?.iter_mut().map(waiting_row).collect()
}

/// The run, if it is one of those.
pub fn waiting_run(db: &mut dyn Db, run_id: &RunId) -> Result<Option<Waiting>, DbError> {
    db.first(WAITING_RUN, vals![run_id.as_str()])?.map(|mut row| waiting_row(&mut row)).transpose()
}

/// The one of a session.
pub fn waiting_in(db: &mut dyn Db, session_id: &SessionId) -> Result<Option<Waiting>, DbError> {
    db.first(WAITING_IN, vals![session_id.as_str()])?.map(|mut row| waiting_row(&mut row)).transpose()
}

/// Reads run, session, component, status and time of acceptance.
pub fn waiting_row(row: &mut Row) -> Result<Waiting, DbError> {
    Ok(Waiting {
        run_id: row.id()?,
        session_id: row.id()?,
        component: columns::component(row)?,
        status: columns::status(row)?,
        created_at_ms: row.u64()?,
    })
}

/// Runs, newest first, with the number of all that match.
pub fn list(db: &mut dyn Db, filter: &RunFilter) -> Result<(Vec<RunRow>, u64), DbError> {
    let mut clauses: Vec<String> = Vec::new();
    let mut values: Vec<Val<'_>> = Vec::new();
    let mut equals = |column: &str, value| {
        values.push(value);
        clauses.push(format!("r.{column} = ?{}", values.len()));
    };
    if let Some(principal) = &filter.principal {
        equals("principal", Val::from(&principal.0));
    }
    if let Some(component) = &filter.component {
        equals("namespace", Val::from(&component.namespace));
        equals("name", Val::from(&component.name));
        equals("kind", Val::from(component.kind.as_str()));
    }
    if let Some(session_id) = &filter.session_id {
        equals("session_id", Val::from(session_id.as_str()));
    }
    if let Some(status) = filter.status {
        equals("status", Val::from(status.as_str()));
        // Names the partial index that has such rows.
        let open = if status.is_terminal() { "r.finished_at_ms is not null" } else { "r.finished_at_ms is null" };
        clauses.push(open.into());
    }
    match filter.ends {
        Ends::Any => {}
        Ends::NoneYet => clauses.push("r.finished_at_ms is null".into()),
        Ends::NoneBefore(at_ms) => {
            values.push(Val::from(at_ms));
            clauses.push(format!("(r.finished_at_ms is null or r.finished_at_ms >= ?{})", values.len()));
        }
    }
    if filter.run_objects_only {
        clauses.push("r.object_uid is not null".into());
    }
    let condition = if clauses.is_empty() { String::new() } else { format!(" where {}", clauses.join(" and ")) };
    let total = db.first(&format!("select count(*) from runs r{condition}"), &values)?;
    let total = total.map_or(Ok(0), |mut row| row.u64())?;
    let (limit, offset) = (values.len() + 1, values.len() + 2);
    values.extend([Val::from(filter.limit.min(MAX_LIST)), Val::from(filter.offset)]);
    let order = "order by r.created_at_ms desc, r.run_id desc";
    let rows = db.query(&format!("{RUNS}{condition} {order} limit ?{limit} offset ?{offset}"), &values)?;
    let runs = rows.into_iter().map(|mut row| columns::run(&mut row)).collect::<Result<_, _>>()?;
    Ok((runs, total))
}

/// How many runs wait.
pub fn waiting_count(db: &mut dyn Db) -> Result<u64, DbError> {
    db.first(WAITING_COUNT, vals![])?.map_or(Ok(0), |mut row| row.u64())
}

/// Counts by status.
pub fn stats(db: &mut dyn Db) -> Result<QueueStats, DbError> {
    let mut stats = QueueStats::default();
    for mut row in db.query(OPEN, vals![])? {
        let (status, count, oldest) = (columns::status(&mut row)?, row.u64()?, row.opt_u64()?);
        match status {
            RunStatus::Pending => (stats.pending, stats.oldest_pending_at_ms) = (count, oldest),
            RunStatus::Paused => stats.paused = count,
            _ => stats.running = count,
        }
    }
    for mut row in db.query(FINISHED, vals![])? {
        match (columns::status(&mut row)?, row.u64()?) {
            (RunStatus::Completed | RunStatus::Regenerated, count) => stats.completed += count,
            (RunStatus::Cancelled, count) => stats.cancelled = count,
            (RunStatus::Error, count) => stats.error = count,
            _ => {}
        }
    }
    Ok(stats)
}

/// Load of every agent that has ever had a run.
pub fn agent_loads(db: &mut dyn Db) -> Result<Vec<AgentLoad>, DbError> {
    let mut open: Vec<(ComponentRef, RunStatus, u32)> = Vec::new();
    for mut row in db.query(OPEN_OF_AGENTS, vals![])? {
        open.push((columns::component(&mut row)?, columns::status(&mut row)?, row.u32()?));
    }
    let mut loads = Vec::new();
    for mut row in db.query(AGENTS, vals![])? {
        let agent = columns::component(&mut row)?;
        let of = |wanted: RunStatus| {
            open.iter().filter(|(whose, status, _)| *whose == agent && *status == wanted).map(|(.., n)| n).sum()
        };
        let (active_runs, queued_runs, paused_runs) =
            (of(RunStatus::Running), of(RunStatus::Pending), of(RunStatus::Paused));
        let last = db.first(LAST_OF_AGENT, vals![&agent.namespace, &agent.name, agent.kind.as_str()])?;
        let last_run = match last {
            Some(mut row) => Some((row.text()?, columns::status(&mut row)?)),
            None => None,
        };
        let ComponentRef { kind: _, namespace, name } = agent;
        loads.push(AgentReport { namespace, name, active_runs, queued_runs, paused_runs, last_run });
    }
    Ok(loads)
}

/// Events after `after`, joined to one chunk, and how many stored ones that were.
pub fn events(
    db: &mut dyn Db,
    run_id: &RunId,
    after: Option<u64>,
    max_bytes: usize,
) -> Result<(Option<EventChunk>, usize), DbError> {
    let from = after.map_or(0, |index| index.saturating_add(1));
    let values = vals![run_id.as_str(), from, from.saturating_add(EVENTS_PAGE), max_bytes.min(ALL_BYTES)];
    let mut page: Option<EventChunk> = None;
    let (mut joined, mut chunks, mut room) = (String::new(), 0, max_bytes);
    db.spans(EVENTS, values, &mut |first_index, next_index, frames| {
        match &mut page {
            // A large chunk goes out as it is.
            None => page = Some(EventChunk { first_index, next_index, frames: frames.into() }),
            Some(_) if frames.len() > room => return false,
            Some(page) => {
                if chunks == 1 {
                    joined.push_str(&page.frames);
                }
                joined.push_str(frames);
                page.next_index = next_index;
                room -= frames.len();
            }
        }
        chunks += 1;
        true
    })?;
    if let Some(page) = page.as_mut().filter(|_| chunks > 1) {
        page.frames = joined.into();
    }
    Ok((page, chunks))
}
