//! What a call may cost at most, and who keeps to it. Reserved before an attempt; what is not known to be unspent counts as
//! spent (security rule 17).

use async_trait::async_trait;
use cadre_protocol::model::{ModelError, ModelErrorCategory, ModelRequest};

use crate::config::ModelConfig;
use crate::models::Sink;
use crate::pricing::Pricing;

/// Most tokens of an answer where a budget applies and the Model names no number.
const DEFAULT_OUTPUT_TOKENS: u64 = 8_192;
/// Tokens that providers add of their own to a prompt, at most.
const ADDED_TOKENS: u64 = 1_024;
/// Fields of a request that would lift the limit of the answer's tokens.
const LIMITS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

/// The most that an attempt may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Prompt tokens. No tokenizer makes more tokens than a text has bytes.
    pub input_tokens: u64,
    /// Answer tokens that are wanted.
    pub output_tokens: u64,
    /// Prices, if there are any.
    pub pricing: Option<Pricing>,
}

/// Keeps a call within budgets.
#[async_trait]
pub trait Meter: Send + Sync {
    /// Reserves what an attempt may take; answers how many tokens its answer may have.
    ///
    /// # Errors
    /// When it might pass a budget: category Budget.
    async fn reserve(&self, bound: &Bound) -> Result<u64, ModelError>;

    /// The attempt took nothing. Not called when that is not known.
    async fn release(&self);
}

impl Bound {
    /// Of a request to a Model.
    pub(crate) fn of(model: &ModelConfig, request: &ModelRequest) -> Self {
        let bytes = serde_json::to_vec(request).map_or(u64::MAX, |body| body.len() as u64);
        Self {
            input_tokens: bytes.saturating_add(ADDED_TOKENS),
            output_tokens: model.parameters.max_output_tokens.unwrap_or(DEFAULT_OUTPUT_TOKENS),
            pricing: model.pricing,
        }
    }
}

/// The Model with answers of at most so many tokens.
pub(crate) fn capped(model: &ModelConfig, output_tokens: u64) -> ModelConfig {
    let mut capped = model.clone();
    capped.parameters.max_output_tokens = Some(output_tokens);
    capped.parameters.extra.retain(|name, _| !LIMITS.contains(&name.as_str()));
    capped
}

/// Whether a failed attempt has cost nothing: no answer had begun, and none can still be under way.
pub(crate) fn is_unspent(error: &ModelError, sink: &Sink<'_>) -> bool {
    !sink.has_begun() && error.category != ModelErrorCategory::Timeout
}

#[cfg(test)]
mod tests {
    use cadre_protocol::message::{Message, Role};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bound_covers_every_byte_and_a_cap_can_not_be_lifted() {
        let mut model = ModelConfig::scripted("n", "m", None);
        model.parameters.extra = serde_json::from_value(json!({"max_tokens": 1_000_000, "seed": 7})).unwrap();
        let text = "é".repeat(500);
        let request = ModelRequest {
            model: "m".into(),
            messages: vec![Message::text(Role::User, text, 0)],
            tools: Vec::new(),
            tool_choice: None,
            output_schema: None,
        };
        let bound = Bound::of(&model, &request);
        assert!(bound.input_tokens > 2_000 && bound.input_tokens < 3_000, "{bound:?}");
        assert_eq!(bound.output_tokens, 8_192);
        let capped = capped(&model, 77);
        assert_eq!(capped.parameters.max_output_tokens, Some(77));
        assert_eq!(json!(capped.parameters.extra), json!({"seed": 7}));
    }
}
