//! Prices and cost, in exact integers.

use std::str::FromStr;

use cadre_protocol::model::Usage;
use cadre_protocol::money;

const TOKENS_PER_UNIT: u128 = 1_000_000;

/// A price in billionths of a US dollar per million tokens, read from a decimal string of US dollars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price(u64);

/// A string that is no price.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a price: expected US dollars per million tokens with at most 9 decimals, such as \"2.50\"")]
pub struct PriceError(String);

impl FromStr for Price {
    type Err = PriceError;

    fn from_str(text: &str) -> Result<Self, PriceError> {
        money::nano_usd(text).map(Self).ok_or_else(|| PriceError(text.chars().take(40).collect()))
    }
}

/// Prices of a Model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pricing {
    /// Prompt tokens.
    pub input: Price,
    /// Answer tokens.
    pub output: Price,
    /// Prompt tokens read from the provider's cache; as `input` when absent.
    pub cache_read: Option<Price>,
    /// Prompt tokens written to the provider's cache; as `input` when absent.
    pub cache_write: Option<Price>,
}

impl Pricing {
    /// From decimal strings, in US dollars per million tokens.
    ///
    /// # Errors
    /// If one of them is no price.
    pub fn parse(
        input: &str,
        output: &str,
        cache_read: Option<&str>,
        cache_write: Option<&str>,
    ) -> Result<Self, PriceError> {
        Ok(Self {
            input: input.parse()?,
            output: output.parse()?,
            cache_read: cache_read.map(str::parse).transpose()?,
            cache_write: cache_write.map(str::parse).transpose()?,
        })
    }

    /// The most that a prompt token and an answer token may cost, whatever the provider's cache does; billionths of a US
    /// dollar per million.
    #[must_use]
    pub fn dearest(&self) -> (u64, u64) {
        let inputs = [Some(self.input), self.cache_read, self.cache_write];
        (inputs.into_iter().flatten().map(|price| price.0).max().unwrap_or_default(), self.output.0)
    }

    /// Cost in billionths of a US dollar, rounded once, half up. Cached tokens are a part of the input tokens.
    #[must_use]
    pub fn cost_nano_usd(&self, usage: &Usage) -> u64 {
        let cached = usage.cache_read_tokens.saturating_add(usage.cache_write_tokens);
        let plain = usage.input_tokens.saturating_sub(cached);
        let parts = [
            (plain, self.input),
            (usage.cache_read_tokens, self.cache_read.unwrap_or(self.input)),
            (usage.cache_write_tokens, self.cache_write.unwrap_or(self.input)),
            (usage.output_tokens, self.output),
        ];
        let sum = parts
            .iter()
            .fold(0_u128, |sum, (tokens, price)| sum.saturating_add(u128::from(*tokens) * u128::from(price.0)));
        u64::try_from(sum.saturating_add(TOKENS_PER_UNIT / 2) / TOKENS_PER_UNIT).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, output: u64, read: u64, write: u64) -> Usage {
        Usage {
            input_tokens: input,
            output_tokens: output,
            cache_read_tokens: read,
            cache_write_tokens: write,
            reasoning_tokens: 0,
        }
    }

    #[test]
    fn prices_are_read_exactly() {
        for (text, expected) in
            [("3", 3_000_000_000), ("0.15", 150_000_000), ("0.000000001", 1), ("0", 0), ("12.5", 12_500_000_000)]
        {
            assert_eq!(text.parse(), Ok(Price(expected)), "{text}");
        }
        for text in ["", ".5", "5.", "-1", "1e3", "1,5", "0.0000000001", "99999999999999999999", " 1", "1.2.3"] {
            assert!(text.parse::<Price>().is_err(), "{text}");
        }
    }

    #[test]
    fn cost_is_exact_and_rounded_once() {
        let pricing = Pricing::parse("3", "15", Some("0.30"), Some("3.75")).unwrap();
        // 700 plain + 200 read + 100 written + 50 answered: 2100 + 60 + 375 + 750 micro-dollars.
        assert_eq!(pricing.cost_nano_usd(&usage(1000, 50, 200, 100)), 3_285_000);
        // Half a billionth rounds up, less than that down: 0.0375 USD per million is 37.5 billionths a token.
        let cheap = Pricing::parse("0.0375", "0", None, None).unwrap();
        assert_eq!(cheap.cost_nano_usd(&usage(1, 0, 0, 0)), 38);
        assert_eq!(cheap.cost_nano_usd(&usage(2, 0, 0, 0)), 75);
    }

    #[test]
    fn cost_never_overflows() {
        let dear = Pricing::parse("9999999999", "9999999999", None, None).unwrap();
        assert_eq!(dear.cost_nano_usd(&usage(u64::MAX, u64::MAX, u64::MAX, 0)), u64::MAX);
    }
}
