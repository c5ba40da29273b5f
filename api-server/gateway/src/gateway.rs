//! One call from beginning to end: attempts, time limit, cancellation, measuring.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cadre_protocol::feed::CredentialState;
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::model::{ModelDelta, ModelError, ModelErrorCategory, ModelReply, ModelRequest, Usage};
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::budget::{self, Bound, Meter};
use crate::config::{ModelConfig, Provider};
use crate::credentials::{self, Credentials};
use crate::egress::{BuildError, Egress, EgressPolicy, Lookup, SystemLookup};
use crate::failure::{capped, failure};
use crate::models::{self, Answer, Sink};
use crate::scripted::Scripts;
use crate::{retry, upstream};

/// Most tokens of a kind that an answer can have, and most that it can cost, in billionths of a dollar: a million dollars.
const MAX_TOKENS: u64 = 1 << 40;
const MAX_NANO_USD: u64 = 1 << 50;
/// Longest id of a model that is kept as a provider tells it.
const MAX_ID_BYTES: usize = 256;

/// The gateway. One for the whole process; cheap to call concurrently.
pub struct Gateway {
    pub(crate) egress: Egress,
    pub(crate) credentials: Arc<dyn Credentials>,
    scripts: Scripts,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("egress", &self.egress).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway that looks names up with the system's resolver. Installs `ring` as the process's TLS provider if
    /// none is installed yet.
    ///
    /// # Errors
    /// If the HTTP client can't be built.
    pub fn new(policy: EgressPolicy, credentials: Arc<dyn Credentials>) -> Result<Self, BuildError> {
        Self::with_lookup(policy, credentials, Arc::new(SystemLookup))
    }

    /// A gateway with another resolver.
    ///
    /// # Errors
    /// If the HTTP client can't be built.
    pub fn with_lookup(
        policy: EgressPolicy,
        credentials: Arc<dyn Credentials>,
        lookup: Arc<dyn Lookup>,
    ) -> Result<Self, BuildError> {
        Ok(Self { egress: Egress::new(policy, lookup)?, credentials, scripts: Scripts::default() })
    }

    /// Asks a model. `deltas` is told each visible piece as it arrives; together they are the reply's content and
    /// reasoning. `request.model` is not read: the caller has resolved it to `model`.
    ///
    /// A failed attempt is repeated as [`ModelConfig::retries`] says, as long as no piece was delivered. When `cancel`
    /// fires, the upstream request ends at once.
    ///
    /// # Errors
    /// The last attempt's error; its message holds neither keys nor headers.
    pub async fn call(
        &self,
        model: &ModelConfig,
        request: ModelRequest,
        deltas: &mut (dyn FnMut(ModelDelta) + Send),
        cancel: &CancellationToken,
    ) -> Result<ModelReply, ModelError> {
        self.call_within(model, request, deltas, cancel, None).await
    }

    /// The same within budgets: each attempt is reserved before it is made. A call that is cancelled is not released.
    ///
    /// # Errors
    /// Also the meter's.
    pub async fn call_within(
        &self,
        model: &ModelConfig,
        request: ModelRequest,
        deltas: &mut (dyn FnMut(ModelDelta) + Send),
        cancel: &CancellationToken,
        meter: Option<&dyn Meter>,
    ) -> Result<ModelReply, ModelError> {
        let started = Instant::now();
        let mut sink = Sink::new(deltas, started);
        let answer = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(failure(ModelErrorCategory::Cancelled, "the model call was cancelled")),
            answer = self.attempts(model, &request, &mut sink, meter) => answer,
        }?;
        let duration = started.elapsed();
        Ok(reply(model, answer, sink.first_piece().unwrap_or(duration), duration))
    }

    /// Whether the Model's credential can be used, and if not, why and which command mends it.
    pub async fn credential_state(&self, model: &ModelConfig) -> (CredentialState, String) {
        if model.provider == Provider::Scripted {
            return (CredentialState::NotRequired, "the Scripted provider needs no credential".to_owned());
        }
        let destination = match models::endpoint(model) {
            Ok(url) => url,
            Err(error) => return (CredentialState::NotAllowed, error.message),
        };
        let host = destination.host_str().unwrap_or_default();
        match credentials::resolve(self.credentials.as_ref(), model, &destination).await {
            Ok(Some(_)) => (CredentialState::Present, format!("the credential may be sent to {host}")),
            Ok(None) => (CredentialState::NotRequired, format!("requests go to {host} without a credential")),
            Err(denied) => (denied.state, denied.message),
        }
    }

    /// Gets ready for calls of these models: CA certificates are read if one of them needs them, which a call would
    /// otherwise wait for. True once there is nothing left to get ready.
    pub async fn prepare<'a>(&self, models: impl IntoIterator<Item = &'a ModelConfig>) -> bool {
        for url in models.into_iter().filter_map(destination) {
            self.egress.prepare(&url).await;
        }
        self.egress.is_prepared()
    }

    async fn attempts(
        &self,
        model: &ModelConfig,
        request: &ModelRequest,
        sink: &mut Sink<'_>,
        meter: Option<&dyn Meter>,
    ) -> Result<Answer, ModelError> {
        if let Some(url) = destination(model) {
            self.egress.prepare(&url).await;
        }
        let mut made = 0_u32;
        loop {
            made = made.saturating_add(1);
            let error = match self.metered(model, request, sink, meter).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let wait = retry::delay(&error, made, model.retries, rand::random());
            let Some(wait) = wait.filter(|_| !sink.delivered()) else {
                return Err(capped(error));
            };
            tracing::info!(
                namespace = model.namespace,
                model = model.name,
                category = error.category.as_str(),
                attempt = made,
                wait_ms = duration_ms(wait),
                "model call failed and will be repeated"
            );
            tokio::time::sleep(wait).await;
            sink.restart();
        }
    }

    /// An attempt within its budgets, if there are any.
    async fn metered(
        &self,
        model: &ModelConfig,
        request: &ModelRequest,
        sink: &mut Sink<'_>,
        meter: Option<&dyn Meter>,
    ) -> Result<Answer, ModelError> {
        let Some(meter) = meter else { return self.timed(model, request, sink).await };
        let output_tokens = meter.reserve(&Bound::of(model, request)).await?;
        let model = budget::capped(model, output_tokens);
        let answer = self.timed(&model, request, sink).await;
        if let Err(error) = &answer
            && budget::is_unspent(error, sink)
        {
            meter.release().await;
        }
        answer
    }

    async fn timed(
        &self,
        model: &ModelConfig,
        request: &ModelRequest,
        sink: &mut Sink<'_>,
    ) -> Result<Answer, ModelError> {
        let asked = tokio::time::timeout(model.timeout, self.attempt(model, request, sink)).await;
        asked.unwrap_or_else(|_| Err(timed_out(model)))
    }

    async fn attempt(
        &self,
        model: &ModelConfig,
        request: &ModelRequest,
        sink: &mut Sink<'_>,
    ) -> Result<Answer, ModelError> {
        match model.provider {
            Provider::Scripted => self.scripts.answer(model, request, sink).await,
            Provider::Anthropic | Provider::OpenAI | Provider::OpenAICompatible => {
                upstream::ask(&self.egress, self.credentials.as_ref(), model, request, sink).await
            }
        }
    }
}

/// Where a model's requests go; none if nowhere.
fn destination(model: &ModelConfig) -> Option<Url> {
    if model.provider == Provider::Scripted { None } else { models::endpoint(model).ok() }
}

fn timed_out(model: &ModelConfig) -> ModelError {
    let seconds = model.timeout.as_secs_f64();
    failure(
        ModelErrorCategory::Timeout,
        format!("{} did not finish its answer within {seconds} s", model.provider.as_str()),
    )
}

fn reply(model: &ModelConfig, answer: Answer, first_piece: Duration, duration: Duration) -> ModelReply {
    let Answer { text, reasoning, calls, provider_data, finish, usage, model_id } = answer;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, duration_ms);
    let usage = plausible(usage);
    let cost = model.pricing.map(|pricing| pricing.cost_nano_usd(&usage).min(MAX_NANO_USD));
    let message = Message {
        tool_calls: calls.into_iter().map(with_id).collect(),
        reasoning: reasoning.filter(|text| !text.is_empty()),
        provider_data,
        ..Message::text(Role::Assistant, text, now)
    };
    ModelReply {
        message,
        finish,
        usage,
        cost_nano_usd: cost,
        time_to_first_token_ms: duration_ms(first_piece),
        duration_ms: duration_ms(duration),
        model_id: model_id.as_deref().and_then(told).unwrap_or_else(|| model.model_id.clone()),
        provider: model.provider.as_str().to_owned(),
    }
}

/// What a provider says that it has counted. Sums of it must stay numbers, whatever a stranger's server says.
fn plausible(usage: Usage) -> Usage {
    let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens } = usage;
    let [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens] =
        [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens]
            .map(|tokens| tokens.min(MAX_TOKENS));
    Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens }
}

/// A model's id as a provider tells it, if it is one that may be kept.
fn told(id: &str) -> Option<String> {
    let is_id = !id.is_empty() && id.len() <= MAX_ID_BYTES && !id.chars().any(char::is_control);
    is_id.then(|| id.to_owned())
}

/// Some servers give calls no id, but results have to name theirs, in all of the run's conversation.
fn with_id(mut call: ToolCall) -> ToolCall {
    if call.id.is_empty() {
        call.id = format!("call_{:016x}", rand::random::<u64>());
    }
    call
}

fn duration_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_counts_can_be_summed() {
        let usage = plausible(Usage { input_tokens: u64::MAX, output_tokens: 3, ..Usage::default() });
        assert_eq!((usage.input_tokens, usage.output_tokens), (MAX_TOKENS, 3));
        let calls = 1_u64 << 20;
        assert!(i64::try_from(calls.checked_mul(MAX_TOKENS).unwrap()).is_ok());
    }

    #[test]
    fn a_model_s_id_is_a_short_line() {
        assert_eq!(told("gpt-5.6-luna").as_deref(), Some("gpt-5.6-luna"));
        for id in ["", "a\nb", &"x".repeat(MAX_ID_BYTES + 1)] {
            assert_eq!(told(id), None, "{id}");
        }
    }
}
