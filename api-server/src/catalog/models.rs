//! A Model resource as the gateway needs it. Pure.

use std::time::Duration;

use cadre_crds::model::{BudgetWindow, ModelApi, ModelBudget, ModelSpec, Provider as SpecProvider};
use cadre_gateway::{Api, AuthConfig, Budget, ModelConfig, Parameters, Pricing, Provider, Window};
use cadre_protocol::money;
use url::Url;

/// Resolves a Model.
///
/// # Errors
/// What has to be edited.
pub fn model_config(namespace: &str, name: &str, generation: i64, spec: &ModelSpec) -> Result<ModelConfig, String> {
    let provider = match spec.provider {
        SpecProvider::Anthropic => Provider::Anthropic,
        SpecProvider::OpenAI => Provider::OpenAI,
        SpecProvider::OpenAICompatible => Provider::OpenAICompatible,
        SpecProvider::Scripted => Provider::Scripted,
    };
    let base_url = match &spec.base_url {
        Some(text) => Some(Url::parse(text).map_err(|error| format!("spec.baseUrl is no URL: {error}"))?),
        None => None,
    };
    let parameters = spec.parameters.as_deref().cloned().unwrap_or_default();
    let pricing = match spec.pricing.as_deref() {
        Some(prices) => {
            let (read, write) = (prices.cache_read.as_deref(), prices.cache_write.as_deref());
            let parsed = Pricing::parse(&prices.input, &prices.output, read, write);
            Some(parsed.map_err(|error| format!("spec.pricing: {error}"))?)
        }
        None => None,
    };
    let budget = spec.budget.as_ref().map(budget).transpose()?;
    Ok(ModelConfig {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        generation,
        provider,
        api: spec.api.map_or_else(|| provider.default_api(), api),
        model_id: spec.model.clone(),
        base_url,
        auth: spec.auth.as_ref().map(|auth| AuthConfig {
            secret_name: auth.secret_ref.name.clone(),
            secret_key: auth.secret_ref.key.clone(),
            header: auth.header.clone(),
            scheme: auth.scheme.clone(),
        }),
        headers: spec.headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect(),
        parameters: Parameters {
            temperature: parameters.temperature,
            top_p: parameters.top_p,
            max_output_tokens: parameters.max_output_tokens.map(u64::from),
            reasoning_effort: parameters.reasoning_effort,
            extra: parameters.extra,
        },
        pricing,
        budget,
        timeout: Duration::from_secs(u64::from(spec.timeout_seconds)),
        retries: spec.retries,
        script: spec.script.clone(),
    })
}

fn budget(budget: &ModelBudget) -> Result<Budget, String> {
    let nano_usd = money::nano_usd(&budget.usd);
    let nano_usd = nano_usd.ok_or_else(|| "spec.budget.usd is no amount of US dollars, such as \"2.50\"".to_owned())?;
    let window = match budget.window {
        BudgetWindow::Hour => Window::Hour,
        BudgetWindow::Day => Window::Day,
        BudgetWindow::Month => Window::Month,
    };
    Ok(Budget { nano_usd, window })
}

fn api(api: ModelApi) -> Api {
    match api {
        ModelApi::Messages => Api::Messages,
        ModelApi::Responses => Api::Responses,
        ModelApi::ChatCompletions => Api::ChatCompletions,
    }
}
