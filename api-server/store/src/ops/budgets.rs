//! Reservations of model calls.
//!
//! A run's budget is what its recorded calls took and its open calls have reserved. A Model's is one number for each period,
//! which a call raises by what it may cost and later lowers to what it did cost.

use cadre_protocol::ids::RunId;

use crate::budgets::{CallBound, ModelBudget, Reserved, RunBudget};
use crate::db::{Db, DbError, vals};
use crate::ops::models;
use crate::rows::ModelCallRow;

const USED: &str = "select cast(coalesce(sum(input_tokens + output_tokens), 0) as bigint), \
     cast(coalesce(sum(cost_nano_usd), 0) as bigint) from model_calls where run_id = ?1";
const OPEN: &str = "select cast(coalesce(sum(tokens), 0) as bigint), cast(coalesce(sum(nano_usd), 0) as bigint) \
     from call_reserves where run_id = ?1 and call_id <> ?2";
const RESERVE: &str = "insert into call_reserves (run_id, call_id, tokens, nano_usd) values (?1, ?2, ?3, ?4) \
     on conflict (run_id, call_id) do update set tokens = excluded.tokens, nano_usd = excluded.nano_usd";
const RELEASE: &str = "delete from call_reserves where run_id = ?1 and call_id = ?2";
const SPENT: &str = "select nano_usd from model_spend where namespace = ?1 and model = ?2 and window_ms = ?3";
const SPEND: &str = "insert into model_spend (namespace, model, window_ms, nano_usd) values (?1, ?2, ?3, ?4) \
     on conflict (namespace, model, window_ms) do update set nano_usd = model_spend.nano_usd + excluded.nano_usd";
const SETTLE: &str = "update model_spend set nano_usd = nano_usd + ?4 \
     where namespace = ?1 and model = ?2 and window_ms = ?3";

/// Reserves a call in its run's budget. Once more is the same reservation.
pub fn reserve_in_run(
    db: &mut dyn Db,
    run_id: &RunId,
    call_id: &str,
    budget: RunBudget,
    bound: CallBound,
) -> Result<Reserved, DbError> {
    let id = run_id.as_str();
    db.lock_run(id)?;
    let (mut tokens, mut nano_usd) = (0_u64, 0_u64);
    for found in [db.first(USED, vals![id])?, db.first(OPEN, vals![id, call_id])?] {
        let Some(mut row) = found else { continue };
        tokens = tokens.saturating_add(row.u64()?);
        nano_usd = nano_usd.saturating_add(row.u64()?);
    }
    let left = |most: Option<u64>, used: u64| most.map(|most| most.saturating_sub(used));
    let affordable = bound.affordable(left(budget.max_tokens, tokens), left(budget.max_nano_usd, nano_usd));
    let Some(output_tokens) = affordable else { return Ok(Reserved::Exceeded { tokens, nano_usd }) };
    let nano_usd = bound.nano_usd(output_tokens);
    let values = vals![id, call_id, bound.input_tokens.saturating_add(output_tokens), nano_usd];
    db.write(RESERVE, values)?;
    Ok(Reserved::Granted { output_tokens, nano_usd })
}

/// The call took nothing.
pub fn release_in_run(db: &mut dyn Db, run_id: &RunId, call_id: &str) -> Result<(), DbError> {
    db.write(RELEASE, vals![run_id.as_str(), call_id])
}

/// Records a call in place of its reservation.
pub fn settle_in_run(db: &mut dyn Db, call: &ModelCallRow, call_id: &str) -> Result<(), DbError> {
    models::insert(db, call)?;
    release_in_run(db, &call.run_id, call_id)
}

/// Reserves a call in its Model's budget.
pub fn reserve_in_model(db: &mut dyn Db, budget: &ModelBudget, bound: CallBound) -> Result<Reserved, DbError> {
    let ModelBudget { namespace, model, window_ms, max_nano_usd } = budget;
    db.lock_name(&name(budget))?;
    let spent = db.first(SPENT, vals![namespace, model, *window_ms])?.map_or(Ok(0), |mut row| row.u64())?;
    let Some(output_tokens) = bound.affordable(None, Some(max_nano_usd.saturating_sub(spent))) else {
        return Ok(Reserved::Exceeded { tokens: 0, nano_usd: spent });
    };
    let nano_usd = bound.nano_usd(output_tokens);
    db.write(SPEND, vals![namespace, model, *window_ms, nano_usd])?;
    Ok(Reserved::Granted { output_tokens, nano_usd })
}

/// A call took `spent` instead of `reserved`.
pub fn settle_in_model(db: &mut dyn Db, budget: &ModelBudget, reserved: u64, spent: u64) -> Result<(), DbError> {
    let ModelBudget { namespace, model, window_ms, max_nano_usd: _ } = budget;
    let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    db.lock_name(&name(budget))?;
    db.write(SETTLE, vals![namespace, model, *window_ms, signed(spent).saturating_sub(signed(reserved))])
}

/// What calls of a Model wait for each other under.
pub fn name(budget: &ModelBudget) -> String {
    format!("budget {}/{}", budget.namespace, budget.model)
}
