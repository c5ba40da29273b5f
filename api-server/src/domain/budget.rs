//! Budgets: what a model call has reserved, and what becomes of it (security rule 17).

use cadre_gateway::{Bound, ModelConfig, Window};
use cadre_protocol::model::{ModelError, ModelErrorCategory};
use cadre_protocol::money;
use cadre_store::StoreError;
use cadre_store::budgets::{CallBound, ModelBudget, Rates, Reserved, RunBudget};
use cadre_store::rows::ModelCallRow;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{DomainError, RunScope, Service};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// What a call holds until it is settled.
#[derive(Debug, Default)]
pub struct Held {
    /// Its reservation in the run's budget.
    call_id: Option<String>,
    /// Its reservation in the Model's budget, in billionths of a US dollar.
    in_model: Option<(ModelBudget, u64)>,
}

/// Whether a call has to be reserved at all.
#[must_use]
pub fn applies(scope: &RunScope, model: &ModelConfig) -> bool {
    model.budget.is_some() || run_budget(scope) != RunBudget::default()
}

fn run_budget(scope: &RunScope) -> RunBudget {
    RunBudget { max_tokens: scope.agent.max_tokens, max_nano_usd: scope.agent.max_cost_nano_usd }
}

impl Service {
    /// Reserves what a call may take; answers how many tokens its answer may have.
    ///
    /// # Errors
    /// Category Budget when it might pass a budget, or when nobody knows what it costs.
    pub async fn hold(&self, scope: &RunScope, model: &ModelConfig, bound: &Bound) -> Result<(Held, u64), ModelError> {
        let mut held = Held::default();
        let of_run = run_budget(scope);
        let mut call = call_bound(bound);
        if call.rates.is_none() && (model.budget.is_some() || of_run.max_nano_usd.is_some()) {
            return Err(unpriced(model));
        }
        if of_run != RunBudget::default() {
            let call_id = uuid::Uuid::now_v7().to_string();
            let reserve = || self.0.store.reserve_in_run(&scope.run_id, &call_id, of_run, call);
            let reserved = self.patiently(reserve).await;
            match reserved.map_err(|error| unknown(&error))? {
                Reserved::Granted { output_tokens, .. } => call.output_tokens = output_tokens,
                Reserved::Exceeded { tokens, nano_usd } => return Err(run_full(of_run, tokens, nano_usd, call)),
            }
            held.call_id = Some(call_id);
        }
        match self.hold_in_model(model, call).await {
            Ok(None) => Ok((held, call.output_tokens)),
            Ok(Some((budget, nano_usd, output_tokens))) => {
                held.in_model = Some((budget, nano_usd));
                Ok((held, output_tokens))
            }
            Err(error) => {
                self.release_hold(scope, held).await;
                Err(error)
            }
        }
    }

    async fn hold_in_model(
        &self,
        model: &ModelConfig,
        call: CallBound,
    ) -> Result<Option<(ModelBudget, u64, u64)>, ModelError> {
        let Some(budget) = model.budget else { return Ok(None) };
        let budget = ModelBudget {
            namespace: model.namespace.clone(),
            model: model.name.clone(),
            window_ms: began_ms(budget.window, self.now_ms()),
            max_nano_usd: budget.nano_usd,
        };
        // A reservation whose answer was lost stays: too much is held, never too little.
        match self.patiently(|| self.0.store.reserve_in_model(&budget, call)).await.map_err(|error| unknown(&error))? {
            Reserved::Granted { output_tokens, nano_usd } => Ok(Some((budget, nano_usd, output_tokens))),
            Reserved::Exceeded { nano_usd, .. } => Err(model_full(&budget, nano_usd, call)),
        }
    }

    /// The call took nothing.
    pub async fn release_hold(&self, scope: &RunScope, held: Held) {
        let Held { call_id, in_model } = held;
        if let Some(call_id) = call_id
            && let Err(error) = self.0.store.release_in_run(&scope.run_id, &call_id).await
        {
            tracing::warn!(run_id = %scope.run_id, category = error.category(), "a reservation stays in the run's budget");
        }
        if let Some((budget, reserved)) = in_model {
            self.settle_in_model(&budget, reserved, 0).await;
        }
    }

    /// Records a measured call in place of what it holds. One whose provider tells no usage keeps its reservation.
    ///
    /// # Errors
    /// The record's.
    pub async fn settle(&self, held: Held, call: ModelCallRow) -> Result<(), DomainError> {
        let Held { call_id, in_model } = held;
        let usage = call.reply.usage;
        let is_measured = usage.input_tokens > 0 || usage.output_tokens > 0;
        let cost = call.reply.cost_nano_usd;
        match call_id.filter(|_| is_measured) {
            Some(call_id) => self.patiently(|| self.0.store.settle_in_run(call.clone(), &call_id)).await?,
            None => self.patiently(|| self.0.store.model_call(call.clone())).await?,
        }
        if let Some((budget, reserved)) = in_model.filter(|_| is_measured) {
            self.settle_in_model(&budget, reserved, cost.unwrap_or(reserved)).await;
        }
        Ok(())
    }

    async fn settle_in_model(&self, budget: &ModelBudget, reserved: u64, spent: u64) {
        if let Err(error) = self.0.store.settle_in_model(budget, reserved, spent).await {
            let ModelBudget { namespace, model, .. } = budget;
            tracing::warn!(namespace, model, category = error.category(), "a reservation stays in the Model's budget");
        }
    }
}

fn call_bound(bound: &Bound) -> CallBound {
    let rates = bound.pricing.map(|pricing| {
        let (input, output) = pricing.dearest();
        Rates { input, output }
    });
    CallBound { input_tokens: bound.input_tokens, output_tokens: bound.output_tokens, rates }
}

/// When a period began that `now_ms` is in.
fn began_ms(window: Window, now_ms: u64) -> u64 {
    match window {
        Window::Hour => now_ms - now_ms % HOUR_MS,
        Window::Day => now_ms - now_ms % DAY_MS,
        Window::Month => month_ms(now_ms).unwrap_or_default(),
    }
}

fn month_ms(now_ms: u64) -> Option<u64> {
    let now = Timestamp::from_millisecond(i64::try_from(now_ms).ok()?).ok()?;
    let first = now.to_zoned(TimeZone::UTC).date().first_of_month().to_zoned(TimeZone::UTC).ok()?;
    u64::try_from(first.timestamp().as_millisecond()).ok()
}

fn unpriced(model: &ModelConfig) -> ModelError {
    let name = &model.name;
    budget(format!("Model {name} has no prices, so nobody knows what a call costs: set its spec.pricing"))
}

fn run_full(of_run: RunBudget, tokens: u64, nano_usd: u64, call: CallBound) -> ModelError {
    let of_tokens = of_run.max_tokens.map(|most| format!("{tokens} of {most} tokens"));
    let of_cost = of_run.max_nano_usd.map(|most| format!("{} of {}", money::usd(nano_usd), money::usd(most)));
    let used = [of_tokens, of_cost].into_iter().flatten().collect::<Vec<_>>().join(" and ");
    budget(format!("the run's budget leaves no room for a call: {used} are used or reserved; {}", may_take(call)))
}

fn model_full(model: &ModelBudget, nano_usd: u64, call: CallBound) -> ModelError {
    let (spent, most) = (money::usd(nano_usd), money::usd(model.max_nano_usd));
    let name = &model.model;
    budget(format!(
        "Model {name} has no budget for a call: {spent} of {most} are spent or reserved; {}",
        may_take(call)
    ))
}

fn may_take(call: CallBound) -> String {
    let tokens = call.input_tokens;
    match call.rates {
        Some(_) => format!("its prompt alone may take {tokens} tokens, {}", money::usd(call.nano_usd(0))),
        None => format!("its prompt alone may take {tokens} tokens"),
    }
}

fn budget(message: String) -> ModelError {
    ModelError { category: ModelErrorCategory::Budget, message, status: None, retry_after_ms: None }
}

/// Without the record nobody knows what is left; it may be back at the next attempt.
fn unknown(error: &StoreError) -> ModelError {
    tracing::warn!(category = error.category(), "a budget can't be looked up now");
    let message = "the budget can't be looked up now".to_owned();
    ModelError { category: ModelErrorCategory::Network, message, status: None, retry_after_ms: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_begin_in_utc() {
        let ms = |text: &str| u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap();
        let now = ms("2026-02-28T23:59:59.999Z");
        for (window, began) in [
            (Window::Hour, "2026-02-28T23:00:00Z"),
            (Window::Day, "2026-02-28T00:00:00Z"),
            (Window::Month, "2026-02-01T00:00:00Z"),
        ] {
            assert_eq!(began_ms(window, now), ms(began), "{window:?}");
        }
        assert_eq!(began_ms(Window::Month, now + 1), ms("2026-03-01T00:00:00Z"));
    }
}
