//! The runs of a session in bounded pieces: nobody knows how many there are, nor how much they say.

use cadre_protocol::ids::{RunId, SessionId};
use cadre_protocol::run::RunMetrics;

use crate::db::{Db, DbError, Val, vals};
use crate::ops::columns::{self, run_columns};
use crate::ops::queries;
use crate::ops::snapshots::Snapshots;
use crate::rows::sessions::{RunPage, SessionRuns};
use crate::rows::{RunDetail, RunRow};

const RUNS: &str = concat!("select ", run_columns!(), " from runs r");
/// About how much a run's row holds.
const OF_ROW: &str = "length(r.input) + length(r.metadata) + coalesce(length(r.content), 0)";
/// The same with its conversation.
const OF_ALL: &str = "length(r.input) + length(r.metadata) + coalesce(length(r.content), 0) \
     + coalesce((select sum(length(m.body)) from messages m where m.run_id = r.run_id), 0) \
     + coalesce((select sum(length(c.body)) from tool_calls c where c.run_id = r.run_id), 0)";
/// What comes with each run besides.
const OF_STATE: &str = " + coalesce((select length(s.state) from sessions s where s.session_id = r.session_id), 0)";
const METRICS: &str = "select seq, metrics from runs where session_id = ?1 and seq > ?2 and metrics is not null \
     order by seq limit ?3";

/// Most rows of a page, and about how many bytes they may hold.
const PAGE: (usize, u64) = (200, 4 << 20);
/// Rows of which the metrics are added up at once.
const STEP: usize = 1_000;

/// A run and its place in its line.
struct Place {
    run_id: RunId,
    seq: u64,
}

/// A page of the runs that match, newest first.
pub fn page(db: &mut dyn Db, of: &SessionRuns) -> Result<RunPage, DbError> {
    let (places, more) = newest(db, of, OF_ROW, PAGE)?;
    let Some(oldest) = places.last().map(|place| place.seq) else { return Ok(RunPage::default()) };
    let (mut condition, mut values) = condition(of);
    values.push(Val::from(oldest));
    condition.push_str(&format!(" and r.seq >= ?{}", values.len()));
    let rows = db.query(&format!("{RUNS}{condition} order by r.seq desc"), &values)?;
    let runs = rows.into_iter().map(|mut row| columns::run(&mut row)).collect::<Result<Vec<RunRow>, _>>()?;
    Ok(RunPage { runs, before: more.then_some(oldest) })
}

/// The newest of the runs that match with all that belongs to them, oldest first: as many as there is room for, and one in
/// any case.
pub fn details(db: &mut dyn Db, snapshots: &Snapshots, of: &SessionRuns) -> Result<Vec<RunDetail>, DbError> {
    let size = if of.with_state { [OF_ALL, OF_STATE].concat() } else { OF_ALL.to_owned() };
    let (places, _) = newest(db, of, &size, (SessionRuns::MAX_RUNS, SessionRuns::MAX_BYTES))?;
    let mut found = Vec::with_capacity(places.len());
    for place in places.into_iter().rev() {
        let detail = queries::detail(db, snapshots, &place.run_id, None)?;
        found.extend(detail.map(|detail| match of.with_state {
            true => detail,
            false => RunDetail { session_state: serde_json::Map::new(), ..detail },
        }));
    }
    Ok(found)
}

/// The sum over all runs of a session. Its cost is that of the runs that have one; times are not summed.
pub fn metrics(db: &mut dyn Db, session_id: &SessionId) -> Result<RunMetrics, DbError> {
    let (mut total, mut after) = (RunMetrics::default(), 0);
    loop {
        let rows = db.query(METRICS, vals![session_id.as_str(), after, STEP])?;
        let count = rows.len();
        for mut row in rows {
            after = row.u64()?;
            total = plus(total, &row.json()?);
        }
        if count < STEP {
            return Ok(total);
        }
    }
}

fn plus(total: RunMetrics, run: &RunMetrics) -> RunMetrics {
    RunMetrics {
        usage: total.usage.plus(run.usage),
        cost_nano_usd: match (total.cost_nano_usd, run.cost_nano_usd) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or_default().saturating_add(b.unwrap_or_default())),
        },
        ..RunMetrics::default()
    }
}

/// The newest runs that match and fit, newest first, and whether there are more.
fn newest(
    db: &mut dyn Db,
    of: &SessionRuns,
    size: &str,
    (max_runs, max_bytes): (usize, u64),
) -> Result<(Vec<Place>, bool), DbError> {
    let (condition, mut values) = condition(of);
    values.push(Val::from(max_runs + 1));
    let limit = values.len();
    let sql = format!(
        "select r.run_id, r.seq, cast({size} as bigint) from runs r{condition} order by r.seq desc limit ?{limit}"
    );
    let (mut places, mut bytes) = (Vec::new(), 0_u64);
    for mut row in db.query(&sql, &values)? {
        let place = Place { run_id: row.id()?, seq: row.u64()? };
        bytes = bytes.saturating_add(row.u64()?);
        if places.len() == max_runs || (bytes > max_bytes && !places.is_empty()) {
            return Ok((places, true));
        }
        places.push(place);
    }
    Ok((places, false))
}

fn condition(of: &SessionRuns) -> (String, Vec<Val<'_>>) {
    let SessionRuns { session_id, principal, component, statuses, from_ms, to_ms, before, with_state: _ } = of;
    let (mut clauses, mut values) = (Vec::new(), Vec::new());
    let component = component.as_ref();
    for (clause, value) in [
        ("r.session_id =", Some(Val::from(session_id.as_str()))),
        ("r.principal =", principal.as_ref().map(|principal| Val::from(&principal.0))),
        ("r.namespace =", component.map(|component| Val::from(&component.namespace))),
        ("r.name =", component.map(|component| Val::from(&component.name))),
        ("r.kind =", component.map(|component| Val::from(component.kind.as_str()))),
        ("r.created_at_ms >=", from_ms.map(Val::from)),
        ("r.created_at_ms <=", to_ms.map(Val::from)),
        ("r.seq <", before.map(Val::from)),
    ] {
        if let Some(value) = value {
            values.push(value);
            clauses.push(format!("{clause} ?{}", values.len()));
        }
    }
    if !statuses.is_empty() {
        let mut places = Vec::with_capacity(statuses.len());
        for status in statuses {
            values.push(Val::from(status.as_str()));
            places.push(format!("?{}", values.len()));
        }
        clauses.push(format!("r.status in ({})", places.join(", ")));
    }
    (format!(" where {}", clauses.join(" and ")), values)
}
