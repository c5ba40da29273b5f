//! Further attempts after a failure that may pass: the same run goes on at its last step.

use std::time::Duration;

use cadre_protocol::agent::RetryPolicy;
use cadre_protocol::event::RunEvent;
use cadre_protocol::journal::Record;
use cadre_protocol::run::RunFailure;
use serde_json::{Map, Value};

use super::bounds;
use super::ends::Stop;
use super::turn::Turn;

/// Longest pause before an attempt.
const MAX_DELAY: Duration = Duration::from_secs(300);

impl Turn {
    /// Waits for the next attempt, or gives the failure back as the run's end. Which step comes next is decided from what
    /// is recorded, so nothing that has happened happens again.
    pub(super) async fn retry(&mut self, failure: RunFailure, after_ms: Option<u64>) -> Result<(), Stop> {
        let policy = self.assignment.agent.retry;
        if !failure.retryable || self.retries >= policy.retries {
            return Err(Stop::Failed { failure, after_ms });
        }
        let delay = delay(policy, self.retries, after_ms);
        self.retries += 1;
        self.journal.push(Some(warning(&failure, self.retries, policy.retries, delay)), Some(Record::Retry {}));
        self.journal.send();
        tokio::select! {
            biased;
            () = self.control.drain.cancelled() => Err(Stop::HandOver),
            () = tokio::time::sleep(delay) => Ok(()),
        }
    }
}

/// What streams are told: the failure, and which attempt of how many follows when.
fn warning(failure: &RunFailure, retry: u32, retries: u32, delay: Duration) -> RunEvent {
    RunEvent::CustomEvent {
        kind: "retry".into(),
        fields: Map::from_iter([
            ("attempt".to_owned(), Value::from(retry + 1)),
            ("attempts".to_owned(), Value::from(retries + 1)),
            ("delay".to_owned(), Value::from(delay.as_secs_f64())),
            ("error".to_owned(), Value::from(bounds::prefix(&failure.message, 2000))),
        ]),
    }
}

/// The pause before the attempt that follows `retry` earlier ones.
fn delay(policy: RetryPolicy, retry: u32, after_ms: Option<u64>) -> Duration {
    let factor = if policy.exponential { 1_u32.checked_shl(retry).unwrap_or(u32::MAX) } else { 1 };
    let own = Duration::from_secs(u64::from(policy.delay_seconds.saturating_mul(factor)));
    own.max(Duration::from_millis(after_ms.unwrap_or(0))).min(MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_where_asked_and_obey_the_provider() {
        let policy = |exponential| RetryPolicy { retries: 9, delay_seconds: 2, exponential };
        let table = [
            (policy(false), 3, None, 2),
            (policy(true), 0, None, 2),
            (policy(true), 3, None, 16),
            (policy(true), 60, None, 300),
            (policy(false), 0, Some(7000), 7),
            (policy(false), 0, Some(u64::MAX), 300),
        ];
        for (policy, retry, after_ms, seconds) in table {
            assert_eq!(delay(policy, retry, after_ms), Duration::from_secs(seconds));
        }
    }
}
