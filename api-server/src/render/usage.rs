//! Usage by day: AgentOS's DayAggregatedMetrics.

use cadre_protocol::model::Usage;
use cadre_store::rows::upkeep::{DayUsage, ModelUsage, RefreshState};
use serde::Serialize;
use utoipa::ToSchema;

use super::metrics::dollars;
use super::time::iso;

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;

/// What happened on a day (UTC).
#[derive(Debug, Serialize, ToSchema)]
pub struct DayMetrics {
    /// The date and `_daily`.
    pub id: String,
    /// Runs of agents that were accepted.
    pub agent_runs_count: u64,
    /// Sessions of agents that began.
    pub agent_sessions_count: u64,
    /// Runs of teams: none.
    pub team_runs_count: u64,
    /// Sessions of teams: none.
    pub team_sessions_count: u64,
    /// Runs of workflows: none.
    pub workflow_runs_count: u64,
    /// Sessions of workflows: none.
    pub workflow_sessions_count: u64,
    /// Different users that callers named.
    pub users_count: u64,
    /// Tokens of its model calls.
    pub token_metrics: TokenMetrics,
    /// The same by model.
    pub model_metrics: Vec<ModelMetrics>,
    /// ISO 8601.
    pub date: String,
    /// ISO 8601.
    pub created_at: String,
    /// ISO 8601.
    pub updated_at: String,
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenMetrics {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Answer tokens.
    pub output_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// Prompt tokens from the provider's cache.
    pub cached_tokens: u64,
    /// The same, as run metrics call them.
    pub cache_read_tokens: u64,
    /// Prompt tokens into the provider's cache.
    pub cache_write_tokens: u64,
    /// Reasoning tokens.
    pub reasoning_tokens: u64,
    /// US dollars for the calls of models with prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// What was asked of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelMetrics {
    /// The provider's id of it.
    pub model_id: String,
    /// Provider.
    pub model_provider: String,
    /// Runs that asked it.
    pub count: u64,
    /// Calls.
    pub calls: u64,
    /// Their tokens.
    #[serde(flatten)]
    pub tokens: TokenMetrics,
}

/// Days.
#[derive(Debug, Serialize, ToSchema)]
pub struct MetricsResponse {
    /// Oldest first.
    pub metrics: Vec<DayMetrics>,
    /// When they were last counted; ISO 8601.
    pub updated_at: Option<String>,
}

/// What came of the wish for a refresh.
#[derive(Debug, Serialize, ToSchema)]
pub struct RefreshResponse {
    /// `started` or `already_running`.
    pub status: String,
    /// For people.
    pub message: Option<String>,
}

/// How the last refresh went.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct RefreshStatus {
    /// `idle`, `running`, `completed` or `failed`.
    pub status: String,
    /// ISO 8601.
    pub started_at: Option<String>,
    /// ISO 8601.
    pub finished_at: Option<String>,
    /// Stable code of what went wrong.
    pub error: Option<String>,
}

/// Days as clients read them.
#[must_use]
pub fn response(days: Vec<DayUsage>, user_id: Option<&str>) -> MetricsResponse {
    let updated_at = days.iter().map(|day| day.updated_at_ms).max().map(iso);
    MetricsResponse { metrics: days.into_iter().map(|row| day(row, user_id)).collect(), updated_at }
}

/// A day; of one user where one is named.
#[must_use]
pub fn day(usage: DayUsage, user_id: Option<&str>) -> DayMetrics {
    let DayUsage { day, runs, sessions, users, models, created_at_ms, updated_at_ms } = usage;
    let date = iso(day.saturating_mul(DAY_MS));
    let name = date.get(..10).unwrap_or_default();
    let of_user = user_id.map(|user| format!("_{user}")).unwrap_or_default();
    let all = models.iter().fold((Usage::default(), 0_u64, 0_u64), |(usage, cost, priced), model| {
        (usage.plus(model.usage), cost.saturating_add(model.cost_nano_usd), priced.saturating_add(model.priced_calls))
    });
    DayMetrics {
        id: format!("{name}_daily{of_user}"),
        agent_runs_count: runs,
        agent_sessions_count: sessions,
        team_runs_count: 0,
        team_sessions_count: 0,
        workflow_runs_count: 0,
        workflow_sessions_count: 0,
        users_count: users,
        token_metrics: tokens(all.0, all.1, all.2),
        model_metrics: models.into_iter().map(model).collect(),
        date,
        created_at: iso(created_at_ms),
        updated_at: iso(updated_at_ms),
    }
}

fn model(usage: ModelUsage) -> ModelMetrics {
    let ModelUsage { provider, model_id, runs, calls, priced_calls, usage, cost_nano_usd } = usage;
    let tokens = tokens(usage, cost_nano_usd, priced_calls);
    ModelMetrics { model_id, model_provider: provider, count: runs, calls, tokens }
}

fn tokens(usage: Usage, cost_nano_usd: u64, priced_calls: u64) -> TokenMetrics {
    let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens } = usage;
    TokenMetrics {
        input_tokens,
        output_tokens,
        total_tokens: input_tokens.saturating_add(output_tokens),
        cached_tokens: cache_read_tokens,
        cache_read_tokens,
        cache_write_tokens,
        reasoning_tokens,
        cost: (priced_calls > 0).then(|| dollars(cost_nano_usd)),
    }
}

/// How a refresh went.
#[must_use]
pub fn status(state: RefreshState) -> RefreshStatus {
    let RefreshState { started_at_ms, finished_at_ms, error } = state;
    let status = match (started_at_ms, finished_at_ms, &error) {
        (None, ..) => "idle",
        (Some(_), None, _) => "running",
        (Some(_), Some(_), None) => "completed",
        (Some(_), Some(_), Some(_)) => "failed",
    };
    RefreshStatus {
        status: status.to_owned(),
        started_at: started_at_ms.map(iso),
        finished_at: finished_at_ms.map(iso),
        error,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_day_sums_its_models() {
        let usage = Usage { input_tokens: 10, output_tokens: 4, cache_read_tokens: 3, ..Usage::default() };
        let model = |id: &str, priced_calls| ModelUsage {
            provider: "P".into(),
            model_id: id.into(),
            runs: 2,
            calls: 3,
            priced_calls,
            usage,
            cost_nano_usd: priced_calls * 1_000_000_000,
        };
        let models = vec![model("a", 1), model("b", 0)];
        let usage = DayUsage { day: 20_000, runs: 4, sessions: 1, users: 1, models, ..DayUsage::default() };
        let shown = serde_json::to_value(day(usage, None)).unwrap();
        assert_eq!((&shown["id"], &shown["date"]), (&json!("2024-10-04_daily"), &json!("2024-10-04T00:00:00.000Z")));
        assert_eq!(
            shown["token_metrics"],
            json!({"input_tokens": 20, "output_tokens": 8, "total_tokens": 28, "cached_tokens": 6,
                   "cache_read_tokens": 6, "cache_write_tokens": 0, "reasoning_tokens": 0, "cost": 1.0})
        );
        let models = &shown["model_metrics"];
        assert_eq!(
            (&models[0]["model_id"], &models[0]["count"], &models[1]["cost"]),
            (&json!("a"), &json!(2), &json!(null))
        );
    }

    #[test]
    fn a_refresh_has_four_states() {
        let named = |started_at_ms, finished_at_ms, error: Option<&str>| {
            status(RefreshState { started_at_ms, finished_at_ms, error: error.map(str::to_owned) }).status
        };
        assert_eq!(named(None, None, None), "idle");
        assert_eq!(named(Some(1), None, None), "running");
        assert_eq!(named(Some(1), Some(2), None), "completed");
        assert_eq!(named(Some(1), Some(2), Some("database_unavailable")), "failed");
    }
}
