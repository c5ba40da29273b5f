//! Budgets of runs and Models: reserved before a model call, settled after it (security rule 17).

use async_trait::async_trait;
use cadre_protocol::ids::RunId;

use crate::error::StoreError;
use crate::rows::ModelCallRow;

/// The least tokens that an answer is worth asking for.
pub const LEAST_OUTPUT_TOKENS: u64 = 64;

/// Prices, in billionths of a US dollar per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// The most that a prompt token may cost.
    pub input: u64,
    /// An answer token.
    pub output: u64,
}

/// The most that a model call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallBound {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Answer tokens that are wanted.
    pub output_tokens: u64,
    /// Prices; without them it counts as free, so a limit on cost needs them.
    pub rates: Option<Rates>,
}

/// What the calls of a run may take together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunBudget {
    /// Tokens.
    pub max_tokens: Option<u64>,
    /// Billionths of a US dollar.
    pub max_nano_usd: Option<u64>,
}

/// What the calls of a Model may cost in a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelBudget {
    /// Namespace of the Model.
    pub namespace: String,
    /// Its name.
    pub model: String,
    /// When the period began, Unix milliseconds.
    pub window_ms: u64,
    /// Billionths of a US dollar.
    pub max_nano_usd: u64,
}

/// What came of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// It is reserved.
    Granted {
        /// Tokens that the answer may have.
        output_tokens: u64,
        /// Billionths of a US dollar that are reserved.
        nano_usd: u64,
    },
    /// It might pass the budget.
    Exceeded {
        /// Tokens that are used or reserved.
        tokens: u64,
        /// Billionths of a US dollar that are spent or reserved.
        nano_usd: u64,
    },
}

impl CallBound {
    /// The most cost of an answer of so many tokens, rounded up.
    #[must_use]
    pub fn nano_usd(&self, output_tokens: u64) -> u64 {
        let Some(Rates { input, output }) = self.rates else { return 0 };
        let asked = u128::from(self.input_tokens) * u128::from(input);
        let sum = asked.saturating_add(u128::from(output_tokens) * u128::from(output));
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// Tokens that the answer may have if so much is left. None when that is less than is worth asking for.
    #[must_use]
    pub fn affordable(&self, tokens: Option<u64>, nano_usd: Option<u64>) -> Option<u64> {
        let mut output_tokens = self.output_tokens;
        if let Some(left) = tokens {
            output_tokens = output_tokens.min(left.checked_sub(self.input_tokens)?);
        }
        if let (Some(left), Some(Rates { input, output })) = (nano_usd, self.rates) {
            let left = u128::from(left) * 1_000_000;
            let left = left.checked_sub(u128::from(self.input_tokens) * u128::from(input))?;
            let most = left.checked_div(u128::from(output)).unwrap_or(u128::MAX);
            output_tokens = output_tokens.min(u64::try_from(most).unwrap_or(u64::MAX));
        }
        (output_tokens >= self.output_tokens.min(LEAST_OUTPUT_TOKENS)).then_some(output_tokens)
    }
}

/// Reservations. What is reserved counts as spent until it is settled or released.
#[async_trait]
pub trait Budgets: Send + Sync {
    /// Reserves a call in its run's budget, under an id that no other call has.
    async fn reserve_in_run(
        &self,
        run_id: &RunId,
        call_id: &str,
        budget: RunBudget,
        bound: CallBound,
    ) -> Result<Reserved, StoreError>;

    /// The call took nothing.
    async fn release_in_run(&self, run_id: &RunId, call_id: &str) -> Result<(), StoreError>;

    /// Records a call in place of its reservation, as [`crate::traits::Journal::model_call`] does.
    async fn settle_in_run(&self, call: ModelCallRow, call_id: &str) -> Result<(), StoreError>;

    /// Reserves a call in its Model's budget.
    async fn reserve_in_model(&self, budget: &ModelBudget, bound: CallBound) -> Result<Reserved, StoreError>;

    /// A call took `spent` instead of `reserved` billionths of a US dollar. Returns once it is queued.
    async fn settle_in_model(&self, budget: &ModelBudget, reserved: u64, spent: u64) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: CallBound = CallBound {
        input_tokens: 1_000,
        output_tokens: 500,
        rates: Some(Rates { input: 3_000_000, output: 7_000_000 }),
    };

    #[test]
    fn an_answer_is_as_long_as_what_is_left_allows() {
        for (tokens, nano_usd, expected) in [
            (None, None, Some(500)),
            (Some(1_500), None, Some(500)),
            (Some(1_499), None, Some(499)),
            (Some(1_064), None, Some(64)),
            (Some(1_063), None, None),
            (Some(999), None, None),
            (None, Some(3_000 + 3_500), Some(500)),
            (None, Some(3_000 + 3_499), Some(499)),
            (None, Some(3_000 + 447), None),
            (None, Some(2_999), None),
            (Some(1_400), Some(3_000 + 1_400), Some(200)),
        ] {
            assert_eq!(CALL.affordable(tokens, nano_usd), expected, "{tokens:?} {nano_usd:?}");
        }
        assert_eq!(CALL.nano_usd(500), 6_500);
        let odd = CallBound { input_tokens: 1, output_tokens: 1, rates: Some(Rates { input: 1, output: 1 }) };
        assert_eq!(odd.nano_usd(1), 1, "rounded up");
        assert_eq!(odd.affordable(None, Some(0)), None);
        let free = CallBound { rates: Some(Rates { input: 0, output: 0 }), ..CALL };
        assert_eq!(free.affordable(None, Some(0)), Some(500));
        let huge =
            CallBound { input_tokens: u64::MAX, rates: Some(Rates { input: u64::MAX, output: u64::MAX }), ..CALL };
        assert_eq!((huge.nano_usd(u64::MAX), huge.affordable(None, Some(u64::MAX))), (u64::MAX, None));
    }
}
