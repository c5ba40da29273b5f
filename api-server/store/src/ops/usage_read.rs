//! Days as they are shown: what is counted, and what has happened since.

use std::collections::{BTreeMap, BTreeSet};

use crate::db::{Db, DbError, Val, vals};
use crate::ops::usage::{self, Owner};
use crate::rows::upkeep::{DayUsage, ModelUsage, UsageFilter};

const DAYS: &str = "select day, cast(sum(runs) as bigint), cast(sum(sessions) as bigint), \
     count(distinct case when user_id <> '' then user_id end), min(created_at_ms), max(updated_at_ms) from usage_daily";
const MODELS: &str = "select day, provider, model_id, cast(sum(runs) as bigint), cast(sum(calls) as bigint), \
     cast(sum(priced_calls) as bigint), cast(sum(input_tokens) as bigint), cast(sum(output_tokens) as bigint), \
     cast(sum(cache_read_tokens) as bigint), cast(sum(cache_write_tokens) as bigint), \
     cast(sum(reasoning_tokens) as bigint), cast(sum(cost_nano_usd) as bigint) from usage_models";
const IS_KNOWN: &str =
    "select 1 from usage_daily where day = ?1 and user_id = ?2 and (?3 = '' or principal = ?3) limit 1";

/// Days that match, oldest first, as they are at `now_ms`.
pub fn days(db: &mut dyn Db, filter: &UsageFilter, now_ms: u64) -> Result<Vec<DayUsage>, DbError> {
    let mut days = BTreeMap::new();
    let (condition, values) = condition(filter);
    for mut row in db.query(&format!("{DAYS}{condition} group by day"), &values)? {
        let day = DayUsage {
            day: row.u64()?,
            runs: row.u64()?,
            sessions: row.u64()?,
            users: row.u64()?,
            models: Vec::new(),
            created_at_ms: row.u64()?,
            updated_at_ms: row.u64()?,
        };
        days.insert(day.day, day);
    }
    for mut row in db.query(&format!("{MODELS}{condition} group by day, provider, model_id"), &values)? {
        let day = row.u64()?;
        let model = usage::model(&mut row)?;
        add_model(day_of(&mut days, day, now_ms), model);
    }
    add_recent(db, filter, now_ms, &mut days)?;
    Ok(days.into_values().collect())
}

/// Adds what is not counted yet.
fn add_recent(
    db: &mut dyn Db,
    filter: &UsageFilter,
    now_ms: u64,
    days: &mut BTreeMap<u64, DayUsage>,
) -> Result<(), DbError> {
    let from_ms = usage::until(db)?;
    // A clock that is ahead of ours has made what is later than now.
    let recent = usage::count(db, from_ms, i64::MAX.unsigned_abs())?;
    let mut users = BTreeSet::new();
    for (owner, runs, sessions) in recent.days.iter().filter(|(owner, ..)| matches(filter, owner)) {
        let day = day_of(days, owner.day, now_ms);
        day.runs += runs;
        day.sessions += sessions;
        day.updated_at_ms = now_ms;
        if !owner.user_id.is_empty() {
            users.insert((owner.day, owner.user_id.as_str()));
        }
    }
    let principal = filter.principal.as_ref().map_or("", |principal| principal.0.as_str());
    for (day, user_id) in users {
        if db.first(IS_KNOWN, vals![day, user_id, principal])?.is_none() {
            day_of(days, day, now_ms).users += 1;
        }
    }
    for (owner, model) in recent.models.into_iter().filter(|(owner, _)| matches(filter, owner)) {
        let day = day_of(days, owner.day, now_ms);
        day.updated_at_ms = now_ms;
        add_model(day, model);
    }
    Ok(())
}

fn day_of(days: &mut BTreeMap<u64, DayUsage>, day: u64, now_ms: u64) -> &mut DayUsage {
    let empty = || DayUsage { day, created_at_ms: now_ms, updated_at_ms: now_ms, ..DayUsage::default() };
    days.entry(day).or_insert_with(empty)
}

fn add_model(day: &mut DayUsage, model: ModelUsage) {
    let same = |known: &&mut ModelUsage| known.provider == model.provider && known.model_id == model.model_id;
    let Some(known) = day.models.iter_mut().find(same) else { return day.models.push(model) };
    let ModelUsage { provider: _, model_id: _, runs, calls, priced_calls, usage, cost_nano_usd } = model;
    known.runs += runs;
    known.calls += calls;
    known.priced_calls += priced_calls;
    known.usage = known.usage.plus(usage);
    known.cost_nano_usd += cost_nano_usd;
}

fn matches(filter: &UsageFilter, owner: &Owner) -> bool {
    let UsageFilter { from_day, to_day, principal, user_id } = filter;
    from_day.is_none_or(|day| owner.day >= day)
        && to_day.is_none_or(|day| owner.day <= day)
        && principal.as_ref().is_none_or(|principal| principal.0 == owner.principal)
        && user_id.as_ref().is_none_or(|user| *user == owner.user_id)
}

fn condition(filter: &UsageFilter) -> (String, Vec<Val<'_>>) {
    let UsageFilter { from_day, to_day, principal, user_id } = filter;
    let mut values = Vec::new();
    let mut clauses: Vec<String> = Vec::new();
    for (condition, value) in [
        ("day >=", from_day.map(Val::from)),
        ("day <=", to_day.map(Val::from)),
        ("principal =", principal.as_ref().map(|principal| Val::from(&principal.0))),
        ("user_id =", user_id.as_ref().map(Val::from)),
    ] {
        if let Some(value) = value {
            values.push(value);
            clauses.push(format!("{condition} ?{}", values.len()));
        }
    }
    let condition = if clauses.is_empty() { String::new() } else { format!(" where {}", clauses.join(" and ")) };
    (condition, values)
}
