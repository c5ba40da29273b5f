//! Model calls, and the metrics that they add up to.

use cadre_protocol::event::EventMetrics;
use cadre_protocol::ids::RunId;
use cadre_protocol::model::{FinishReason, Usage};
use cadre_protocol::run::RunMetrics;

use crate::db::{Db, DbError, Row, vals};
use crate::ops::append::Live;
use crate::rows::{ModelCallFact, ModelCallRow};

const INSERT: &str = "insert into model_calls (run_id, call_id, model, provider, model_id, finish, input_tokens, \
     output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_nano_usd, first_token_ms, duration_ms, \
     at_ms) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) \
     on conflict (run_id, call_id) do nothing";
const SUM: &str = "select count(*), cast(coalesce(sum(input_tokens), 0) as bigint), \
     cast(coalesce(sum(output_tokens), 0) as bigint), cast(coalesce(sum(cache_read_tokens), 0) as bigint), \
     cast(coalesce(sum(cache_write_tokens), 0) as bigint), cast(coalesce(sum(reasoning_tokens), 0) as bigint), \
     count(cost_nano_usd), cast(coalesce(sum(cost_nano_usd), 0) as bigint), \
     min(at_ms - duration_ms + first_token_ms) from model_calls where run_id = ?1";

const OF_RUN: &str = "select call_id, model, provider, model_id, finish, input_tokens, output_tokens, \
     cache_read_tokens, cache_write_tokens, reasoning_tokens, first_token_ms, duration_ms, at_ms from model_calls \
     where run_id = ?1 order by at_ms, call_id";

/// A run's calls, oldest first.
pub fn of_run(db: &mut dyn Db, run_id: &RunId) -> Result<Vec<ModelCallFact>, DbError> {
    let read = |mut row: Row| {
        Ok(ModelCallFact {
            call_id: row.text()?,
            model: row.text()?,
            provider: row.text()?,
            model_id: row.text()?,
            finish: row.text()?,
            usage: Usage {
                input_tokens: row.u64()?,
                output_tokens: row.u64()?,
                cache_read_tokens: row.u64()?,
                cache_write_tokens: row.u64()?,
                reasoning_tokens: row.u64()?,
            },
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
    let duration_ms = live.started_at_ms.map(|start| at_ms.saturating_sub(start));
    let Some(mut row) = db.first(SUM, vals![live.run_id.as_str()])? else {
        return Ok(RunMetrics { duration_ms, ..RunMetrics::default() });
    };
    let model_calls = row.u64()?;
    let usage = Usage {
        input_tokens: row.u64()?,
        output_tokens: row.u64()?,
        cache_read_tokens: row.u64()?,
        cache_write_tokens: row.u64()?,
        reasoning_tokens: row.u64()?,
    };
    let (priced, cost, first_token_at) = (row.u64()?, row.u64()?, row.opt_int()?);
    let first_token_at = first_token_at.and_then(|at| u64::try_from(at).ok());
    Ok(RunMetrics {
        usage,
        cost_nano_usd: (model_calls > 0 && priced == model_calls).then_some(cost),
        model_calls,
        time_to_first_token_ms: first_token_at.map(|at| at.saturating_sub(live.created_at_ms)),
        duration_ms,
    })
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
