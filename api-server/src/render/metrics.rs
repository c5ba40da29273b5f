//! Tokens, cost and times.

use cadre_protocol::agent::ModelBinding;
use cadre_protocol::run::{ModelMetrics, RunMetrics};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Tokens (counts), cost (US dollars) and times (seconds) of a run or a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct Metrics {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Answer tokens.
    pub output_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// Prompt tokens from the provider's cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_read_tokens: u64,
    /// Prompt tokens into the provider's cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Reasoning tokens.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// US dollars; absent when a model without prices took part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Seconds from acceptance to the first piece of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_first_token: Option<f64>,
    /// Seconds from start to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    /// The same by model.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub details: Option<Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Metrics of a run.
#[must_use]
pub fn of_run(metrics: &RunMetrics, model: &ModelBinding) -> Metrics {
    let whole = ModelMetrics {
        provider: model.provider.clone(),
        model_id: model.model_id.clone(),
        usage: metrics.usage,
        cost_nano_usd: metrics.cost_nano_usd,
    };
    let models = if metrics.models.is_empty() { std::slice::from_ref(&whole) } else { &metrics.models };
    let details =
        (metrics.model_calls > 0).then(|| json!({ "model": models.iter().map(of_model).collect::<Vec<_>>() }));
    Metrics { details, ..plain(metrics) }
}

/// What one model did; counts that are zero are left out, as in the whole.
fn of_model(model: &ModelMetrics) -> Value {
    let ModelMetrics { provider, model_id, usage, cost_nano_usd } = model;
    let mut shown = json!({
        "id": model_id,
        "provider": provider,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
    });
    let more = [
        ("cache_read_tokens", usage.cache_read_tokens),
        ("cache_write_tokens", usage.cache_write_tokens),
        ("reasoning_tokens", usage.reasoning_tokens),
    ];
    if let Some(shown) = shown.as_object_mut() {
        shown.extend(more.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n.into())));
        shown.extend(cost_nano_usd.map(|nano| ("cost".to_owned(), dollars(nano).into())));
    }
    shown
}

/// Metrics without the part by model.
#[must_use]
pub fn plain(metrics: &RunMetrics) -> Metrics {
    let RunMetrics { usage, cost_nano_usd, model_calls: _, time_to_first_token_ms, duration_ms, models: _ } = metrics;
    Metrics {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        total_tokens: usage.input_tokens.saturating_add(usage.output_tokens),
        cache_read_tokens: usage.cache_read_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        cost: cost_nano_usd.map(dollars),
        time_to_first_token: time_to_first_token_ms.map(|ms| scaled(ms, 1e-3)),
        duration: duration_ms.map(|ms| scaled(ms, 1e-3)),
        details: None,
    }
}

/// Billionths of a US dollar as dollars.
#[must_use]
pub fn dollars(nano: u64) -> f64 {
    scaled(nano, 1e-9)
}

#[expect(clippy::cast_precision_loss, reason = "2^53 milliseconds or billionths of a dollar are never reached")]
fn scaled(n: u64, unit: f64) -> f64 {
    // Dividing by the whole inverse keeps 25 ms at 0.025 where multiplying would give 0.025000000000000001.
    n as f64 / unit.recip().round()
}

#[cfg(test)]
mod tests {
    use cadre_protocol::model::Usage;

    use super::*;

    fn metrics() -> RunMetrics {
        RunMetrics {
            usage: Usage { input_tokens: 15, output_tokens: 4, cache_read_tokens: 3, ..Usage::default() },
            cost_nano_usd: Some(1_250_000),
            model_calls: 2,
            time_to_first_token_ms: Some(25),
            duration_ms: Some(1_026),
            models: Vec::new(),
        }
    }

    #[test]
    fn times_are_seconds_and_zero_counts_are_left_out() {
        let model = ModelBinding { name: "m".into(), provider: "OpenAI".into(), model_id: "gpt".into() };
        assert_eq!(
            serde_json::to_value(of_run(&metrics(), &model)).unwrap(),
            json!({
                "input_tokens": 15, "output_tokens": 4, "total_tokens": 19, "cache_read_tokens": 3, "cost": 0.00125,
                "time_to_first_token": 0.025, "duration": 1.026,
                "details": {"model": [{"id": "gpt", "provider": "OpenAI", "input_tokens": 15, "output_tokens": 4,
                                       "total_tokens": 19, "cache_read_tokens": 3, "cost": 0.00125}]},
            })
        );
    }

    #[test]
    fn each_of_several_models_has_its_part() {
        let part = |id: &str, input_tokens| ModelMetrics {
            provider: "P".into(),
            model_id: id.into(),
            usage: Usage { input_tokens, ..Usage::default() },
            cost_nano_usd: None,
        };
        let model = ModelBinding { name: "m".into(), provider: "P".into(), model_id: "a".into() };
        let shown = of_run(&RunMetrics { models: vec![part("a", 10), part("b", 5)], ..metrics() }, &model);
        let models = shown.details.unwrap()["model"].clone();
        let ids: Vec<_> =
            models.as_array().unwrap().iter().map(|model| (&model["id"], &model["input_tokens"])).collect();
        assert_eq!(ids, [(&json!("a"), &json!(10)), (&json!("b"), &json!(5))]);
    }
}
