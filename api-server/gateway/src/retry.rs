//! When a failed attempt is made again.

use std::time::Duration;

use cadre_protocol::model::ModelError;

const FIRST_MS: u64 = 500;
const LONGEST: Duration = Duration::from_secs(30);
/// A provider that asks for more than this is left to the run's own retries.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// How long to wait before attempt `made + 1`, or `None` if there should be none. `jitter` is in 0..1.
///
/// The wait doubles from half a second, half of it at random, and is never shorter than the provider asks for.
pub(crate) fn delay(error: &ModelError, made: u32, retries: u32, jitter: f64) -> Option<Duration> {
    if made > retries || error.category.is_permanent() {
        return None;
    }
    let full = Duration::from_millis(FIRST_MS << made.saturating_sub(1).min(10)).min(LONGEST);
    let backoff = full / 2 + (full / 2).mul_f64(jitter.clamp(0.0, 1.0));
    let asked = Duration::from_millis(error.retry_after_ms.unwrap_or(0));
    (asked <= LONGEST_ASKED).then(|| backoff.max(asked))
}

#[cfg(test)]
mod tests {
    use cadre_protocol::model::ModelErrorCategory as Category;

    use super::*;
    use crate::failure::failure;

    #[test]
    fn waits_grow_and_end() {
        let error = failure(Category::Provider, "x");
        assert_eq!(delay(&error, 1, 3, 0.0), Some(Duration::from_millis(250)));
        assert_eq!(delay(&error, 1, 3, 1.0), Some(Duration::from_millis(500)));
        assert_eq!(delay(&error, 3, 3, 1.0), Some(Duration::from_secs(2)));
        assert_eq!(delay(&error, 4, 3, 1.0), None);
        assert_eq!(delay(&error, u32::MAX, u32::MAX, 1.0), Some(LONGEST));
    }

    #[test]
    fn providers_are_heard_and_permanent_errors_end_it() {
        let mut error = failure(Category::RateLimit, "x");
        error.retry_after_ms = Some(4_000);
        assert_eq!(delay(&error, 1, 3, 0.0), Some(Duration::from_secs(4)));
        error.retry_after_ms = Some(61_000);
        assert_eq!(delay(&error, 1, 3, 0.0), None);
        assert_eq!(delay(&failure(Category::BadRequest, "x"), 1, 3, 0.0), None);
    }
}
