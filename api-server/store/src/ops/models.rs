//! Model calls, and the metrics that they add up to.

use cadre_protocol::event::EventMetrics;
use cadre_protocol::ids::RunId;
use cadre_protocol::model::{FinishReason, Usage};
use cadre_protocol::run::{ModelMetrics, RunMetrics};

use crate::db::{Db, DbError, Row, vals};
use crate::ops::append::Live;
use crate::rows::{ModelCallFact, ModelCallRow};

const INSERT: &str = "insert into model_calls (run_id, call_id, model, provider, model_id, finish, input_tokens, \
     output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_nano_usd, first_token_ms, duration_ms, \
     at_ms) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) \
     on conflict (run_id, call_id) do nothing";
const SUM: &str = "select provider, model_id, count(*), cast(sum(input_tokens) as bigint), \
     cast(sum(output_tokens) as bigint), cast(sum(cache_read_tokens) as bigint), \
     cast(sum(cache_write_tokens) as bigint), cast(sum(reasoning_tokens) as bigint), \
     count(cost_nano_usd), cast(coalesce(sum(cost_nano_usd), 0) as bigint), \
     min(at_ms - duration_ms + first_token_ms) as begun from model_calls where run_id = ?1 \
     group by provider, model_id order by begun";

const OF_RUN: &str = "select call_id, model, provider, model_id, finish, input_tokens, output_tokens, \
     cache_read_tokens, cache_write_tokens, reasoning_tokens, first_token_ms, duration_ms, at_ms from model_calls \
     where run_id = ?1 order by at_ms, call_id";

/// Reads tokens, in the order in which every statement names them.
pub fn usage(row: &mut Row) -> Result<Usage, DbError> {
    Ok(Usage {
        input_tokens: row.u64()?,
        output_tokens: row.u64()?,
        cache_read_tokens: row.u64()?,
        cache_write_tokens: row.u64()?,
        reasoning_tokens: row.u64()?,
    })
}

/// A run's calls, oldest first.
pub fn of_run(db: &mut dyn Db, run_id: &RunId) -> Result<Vec<ModelCallFact>, DbError> {
    let read = |mut row: Row| {
        Ok(ModelCallFact {
            call_id: row.text()?,
            model: row.text()?,
            provider: row.text()?,
            model_id: row.text()?,
            finish: row.text()?,
            usage: usage(&mut row)?,
            time_to_first_token_ms: row.u64()?,
            duration_ms: row.u64()?,
            at_ms: row.u64()?,
        })
    };
    db.query(OF_RUN, vals![run_id.as_str()])?.into_iter().map(read).collect()
}

/// Stores a call.
pub fn insert(db: &mut dyn Db, call: &ModelCallRow) -> Result<(), DbError> {
    let ModelCallRow { run_id, model, reply, at_ms } = call;
    let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens } = reply.usage;
    let values = vals![
        run_id.as_str(),
        &reply.message.id,
        model,
        &reply.provider,
        &reply.model_id,
        finish_text(reply.finish),
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        reasoning_tokens,
        reply.cost_nano_usd,
        reply.time_to_first_token_ms,
        reply.duration_ms,
        *at_ms
    ];
    db.write(INSERT, values)
}

fn finish_text(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
    }
}

/// A run's metrics if it ends at `at_ms`.
pub fn metrics(db: &mut dyn Db, live: &Live, at_ms: u64) -> Result<RunMetrics, DbError> {
    let mut metrics = RunMetrics {
        duration_ms: live.started_at_ms.map(|start| at_ms.saturating_sub(start)),
        ..RunMetrics::default()
    };
    let mut is_priced = true;
    for mut row in db.query(SUM, vals![live.run_id.as_str()])? {
        let (provider, model_id, calls) = (row.text()?, row.text()?, row.u64()?);
        let usage = Usage {
            input_tokens: row.u64()?,
            output_tokens: row.u64()?,
            cache_read_tokens: row.u64()?,
            cache_write_tokens: row.u64()?,
            reasoning_tokens: row.u64()?,
        };
        let (priced, cost, first_token_at) = (row.u64()?, row.u64()?, row.opt_int()?);
        let cost_nano_usd = (priced == calls).then_some(cost);
        is_priced &= cost_nano_usd.is_some();
        metrics.usage = metrics.usage.plus(usage);
        metrics.model_calls += calls;
        metrics.cost_nano_usd = Some(metrics.cost_nano_usd.unwrap_or_default().saturating_add(cost));
        let first_token_at = first_token_at.and_then(|at| u64::try_from(at).ok());
        let since = first_token_at.map(|at| at.saturating_sub(live.created_at_ms));
        metrics.time_to_first_token_ms = metrics.time_to_first_token_ms.or(since);
        metrics.models.push(ModelMetrics { provider, model_id, usage, cost_nano_usd });
    }
    if !is_priced {
        metrics.cost_nano_usd = None;
    }
    // One model's part is the whole: it need not be kept twice.
    if metrics.models.len() < 2 {
        metrics.models.clear();
    }
    Ok(metrics)
}

/// The same as events show them: seconds and dollars.
#[expect(clippy::cast_precision_loss, reason = "milliseconds and billionths of a dollar stay far below 2^53")]
pub fn event_metrics(metrics: &RunMetrics) -> EventMetrics {
    let seconds = |ms: u64| ms as f64 / 1e3;
    EventMetrics {
        input_tokens: metrics.usage.input_tokens,
        output_tokens: metrics.usage.output_tokens,
        total_tokens: metrics.usage.input_tokens.saturating_add(metrics.usage.output_tokens),
        cache_read_tokens: metrics.usage.cache_read_tokens,
        cache_write_tokens: metrics.usage.cache_write_tokens,
        reasoning_tokens: metrics.usage.reasoning_tokens,
        cost: metrics.cost_nano_usd.map(|nano| nano as f64 / 1e9),
        time_to_first_token: metrics.time_to_first_token_ms.map(seconds),
        duration: metrics.duration_ms.map(seconds),
    }
}
