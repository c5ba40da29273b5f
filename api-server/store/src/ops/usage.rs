//! Counting: runs, sessions and model calls are added to the rows of their day, each once.
//!
//! Everything up to a moment is counted; what came after it is added when somebody asks ([`super::usage_read`]). The moment
//! moves in steps of a bounded number of rows. Whoever moves it has counted from where it was, or it does not move: so any
//! number of replicas may count.

use cadre_protocol::model::Usage;

use crate::db::{Db, DbError, Row, vals};
use crate::ops::models;
use crate::rows::upkeep::{ModelUsage, RefreshState};

const UNTIL: &str = "select counted_until_ms from usage_progress where id = 1";
const STEP_OF_RUNS: &str =
    "select created_at_ms from runs where created_at_ms > ?1 order by created_at_ms limit 1 offset ?2";
const STEP_OF_CALLS: &str = "select at_ms from model_calls where at_ms > ?1 order by at_ms limit 1 offset ?2";
/// Runs of a copied session are older than it, and were counted where they ran.
const RUNS: &str = "select created_at_ms / 86400000, principal, coalesce(user_id, ''), count(*) from runs \
     where created_at_ms > ?1 and created_at_ms <= ?2 and not (forked_from_session_id is not null and created_at_ms < \
     coalesce((select s.created_at_ms from sessions s where s.session_id = runs.session_id), 0)) group by 1, 2, 3";
const SESSIONS: &str = "select created_at_ms / 86400000, principal, coalesce(user_id, ''), count(*) from sessions \
     where created_at_ms > ?1 and created_at_ms <= ?2 group by 1, 2, 3";
/// A run is counted with its first call of a model.
const CALLS: &str = "select m.at_ms / 86400000, r.principal, coalesce(r.user_id, ''), m.provider, m.model_id, \
     cast(sum(case when exists (select 1 from model_calls p where p.run_id = m.run_id and p.provider = m.provider \
     and p.model_id = m.model_id and (p.at_ms < m.at_ms or (p.at_ms = m.at_ms and p.call_id < m.call_id))) \
     then 0 else 1 end) as bigint), count(*), count(m.cost_nano_usd), cast(sum(m.input_tokens) as bigint), \
     cast(sum(m.output_tokens) as bigint), cast(sum(m.cache_read_tokens) as bigint), \
     cast(sum(m.cache_write_tokens) as bigint), cast(sum(m.reasoning_tokens) as bigint), \
     cast(coalesce(sum(m.cost_nano_usd), 0) as bigint) from model_calls m join runs r on r.run_id = m.run_id \
     where m.at_ms > ?1 and m.at_ms <= ?2 group by 1, 2, 3, 4, 5";
const MOVE: &str = "update usage_progress set counted_until_ms = ?2 where id = 1 and counted_until_ms = ?1";
const ADD_DAY: &str = "insert into usage_daily (day, principal, user_id, runs, sessions, created_at_ms, updated_at_ms) \
     values (?1, ?2, ?3, ?4, ?5, ?6, ?6) on conflict (day, principal, user_id) do update set \
     runs = usage_daily.runs + excluded.runs, sessions = usage_daily.sessions + excluded.sessions, \
     updated_at_ms = excluded.updated_at_ms";
const ADD_MODEL: &str = "insert into usage_models (day, principal, user_id, provider, model_id, runs, calls, \
     priced_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_nano_usd) \
     values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
     on conflict (day, principal, user_id, provider, model_id) do update set \
     runs = usage_models.runs + excluded.runs, calls = usage_models.calls + excluded.calls, \
     priced_calls = usage_models.priced_calls + excluded.priced_calls, \
     input_tokens = usage_models.input_tokens + excluded.input_tokens, \
     output_tokens = usage_models.output_tokens + excluded.output_tokens, \
     cache_read_tokens = usage_models.cache_read_tokens + excluded.cache_read_tokens, \
     cache_write_tokens = usage_models.cache_write_tokens + excluded.cache_write_tokens, \
     reasoning_tokens = usage_models.reasoning_tokens + excluded.reasoning_tokens, \
     cost_nano_usd = usage_models.cost_nano_usd + excluded.cost_nano_usd";
const BEGIN_REFRESH: &str = "update usage_progress set started_at_ms = ?1, finished_at_ms = null, error = null \
     where id = 1 and (started_at_ms is null or finished_at_ms is not null or started_at_ms < ?2)";
const END_REFRESH: &str = "update usage_progress set finished_at_ms = ?1, error = ?2 where id = 1";
const REFRESH: &str = "select started_at_ms, finished_at_ms, error from usage_progress where id = 1";

/// Rows of a kind that one step counts, about.
const STEP: u64 = 5_000;

/// Whose day it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Days since 1970-01-01 UTC.
    pub day: u64,
    /// Owner.
    pub principal: String,
    /// The user that callers named; empty when none.
    pub user_id: String,
}

/// What has happened in some time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// After this moment, in Unix milliseconds.
    pub from_ms: u64,
    /// Up to this one.
    pub to_ms: u64,
    /// Runs and sessions.
    pub days: Vec<(Owner, u64, u64)>,
    /// Model calls.
    pub models: Vec<(Owner, ModelUsage)>,
}

/// The moment up to which all is counted.
pub fn until(db: &mut dyn Db) -> Result<u64, DbError> {
    db.first(UNTIL, vals![])?.map_or(Ok(0), |mut row| row.u64())
}

/// Counts the next step, not beyond `to_ms`. None when there is nothing before it.
pub fn next_step(db: &mut dyn Db, to_ms: u64) -> Result<Option<Counted>, DbError> {
    let from_ms = until(db)?;
    if to_ms <= from_ms {
        return Ok(None);
    }
    let mut end = to_ms;
    for statement in [STEP_OF_RUNS, STEP_OF_CALLS] {
        if let Some(mut row) = db.first(statement, vals![from_ms, STEP])? {
            end = end.min(row.u64()?);
        }
    }
    count(db, from_ms, end).map(Some)
}

/// Counts what happened after a moment and up to another.
pub fn count(db: &mut dyn Db, from_ms: u64, to_ms: u64) -> Result<Counted, DbError> {
    let mut counted = Counted { from_ms, to_ms, ..Counted::default() };
    for mut row in db.query(RUNS, vals![from_ms, to_ms])? {
        counted.days.push((owner(&mut row)?, row.u64()?, 0));
    }
    for mut row in db.query(SESSIONS, vals![from_ms, to_ms])? {
        counted.days.push((owner(&mut row)?, 0, row.u64()?));
    }
    for mut row in db.query(CALLS, vals![from_ms, to_ms])? {
        counted.models.push((owner(&mut row)?, model(&mut row)?));
    }
    Ok(counted)
}

fn owner(row: &mut Row) -> Result<Owner, DbError> {
    Ok(Owner { day: row.u64()?, principal: row.text()?, user_id: row.text()? })
}

/// Reads provider, model id and sums.
pub fn model(row: &mut Row) -> Result<ModelUsage, DbError> {
    Ok(ModelUsage {
        provider: row.text()?,
        model_id: row.text()?,
        runs: row.u64()?,
        calls: row.u64()?,
        priced_calls: row.u64()?,
        usage: models::usage(row)?,
        cost_nano_usd: row.u64()?,
    })
}

/// Keeps what was counted. False when someone else has moved on from there: nothing is kept then.
pub fn keep(db: &mut dyn Db, counted: &Counted, at_ms: u64) -> Result<bool, DbError> {
    if db.execute(MOVE, vals![counted.from_ms, counted.to_ms])? == 0 {
        return Ok(false);
    }
    for (Owner { day, principal, user_id }, runs, sessions) in &counted.days {
        db.write(ADD_DAY, vals![*day, principal, user_id, *runs, *sessions, at_ms])?;
    }
    for (Owner { day, principal, user_id }, model) in &counted.models {
        let ModelUsage { provider, model_id, runs, calls, priced_calls, usage, cost_nano_usd } = model;
        let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens } = *usage;
        let values = vals![
            *day,
            principal,
            user_id,
            provider,
            model_id,
            *runs,
            *calls,
            *priced_calls,
            input_tokens,
            output_tokens,
            cache_read_tokens,
            cache_write_tokens,
            reasoning_tokens,
            *cost_nano_usd
        ];
        db.write(ADD_MODEL, values)?;
    }
    Ok(true)
}

/// Notes that a refresh begins. False while another one that began after `stale_before_ms` has not ended.
pub fn begin_refresh(db: &mut dyn Db, at_ms: u64, stale_before_ms: u64) -> Result<bool, DbError> {
    Ok(db.execute(BEGIN_REFRESH, vals![at_ms, stale_before_ms])? > 0)
}

/// Notes that it has ended.
pub fn end_refresh(db: &mut dyn Db, at_ms: u64, error: Option<&str>) -> Result<(), DbError> {
    db.write(END_REFRESH, vals![at_ms, error])
}

/// How the last one went.
pub fn refresh_state(db: &mut dyn Db) -> Result<RefreshState, DbError> {
    let Some(mut row) = db.first(REFRESH, vals![])? else { return Ok(RefreshState::default()) };
    Ok(RefreshState { started_at_ms: row.opt_u64()?, finished_at_ms: row.opt_u64()?, error: row.opt_text()? })
}
