//! What is done from time to time: counting what happened, forgetting what is old. Any number of servers may do it.

use std::time::Duration;

use cadre_store::rows::upkeep::Expiry;

use super::{DomainError, Service};

/// Time between rounds.
const EVERY: Duration = Duration::from_secs(60);
/// Rows that go in one transaction.
const BATCH: u32 = 500;
/// Most transactions of a kind in one round: what is left waits for the next, so that runs are not held up for long.
const MAX_BATCHES: u32 = 20;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Idempotency keys of HTTP callers, from their run's acceptance, and at least until its end.
    pub idempotency_keys: Duration,
    /// Runs, from their end, and sessions that are left without one. None keeps them for ever.
    pub runs: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { idempotency_keys: DAY, runs: None }
    }
}

impl Retention {
    /// Kept so many hours and days; 0 days keeps runs for ever.
    #[must_use]
    pub fn new(idempotency_hours: u32, run_days: u32) -> Self {
        let runs = (run_days > 0).then(|| DAY * run_days);
        Self { idempotency_keys: Duration::from_secs(3600) * idempotency_hours, runs }
    }
}

impl Service {
    /// Rounds until the server stops.
    pub(crate) async fn upkeep(self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = self.0.stopping.cancelled() => return,
            }
            let now_ms = self.now_ms();
            if let Err(error) = self.count_usage(now_ms).await {
                tracing::warn!(%error, "usage can't be counted now");
            }
            if let Err(error) = self.forget(now_ms).await {
                tracing::warn!(%error, "what is old can't be removed now");
            }
        }
    }

    /// Removes what is kept no longer at `now_ms` (Unix milliseconds), within the bounds of one round.
    ///
    /// # Errors
    /// The record's. What was removed before stays removed.
    pub async fn forget(&self, now_ms: u64) -> Result<(), DomainError> {
        let Retention { idempotency_keys, runs } = self.0.limits.retention;
        let expiry = Expiry { keys_before_ms: before(now_ms, idempotency_keys), now_ms, limit: BATCH };
        for _ in 0..MAX_BATCHES {
            if self.0.store.expire(expiry).await? < u64::from(BATCH) {
                break;
            }
        }
        match runs {
            Some(kept) => self.forget_runs(before(now_ms, kept)).await,
            None => Ok(()),
        }
    }

    async fn forget_runs(&self, before_ms: u64) -> Result<(), DomainError> {
        let mut removed = 0_u32;
        for _ in 0..MAX_BATCHES {
            let old = self.0.store.old_runs(before_ms, BATCH).await?;
            for run in &old {
                removed += u32::from(self.0.store.delete_run(run, before_ms).await?);
            }
            if old.len() < BATCH as usize || self.0.stopping.is_cancelled() {
                break;
            }
        }
        let empty = self.0.store.empty_sessions(before_ms, BATCH).await?;
        let sessions = self.delete_sessions(&empty, None).await?.len();
        if removed > 0 || sessions > 0 {
            tracing::info!(runs = removed, sessions, "old runs were removed");
        }
        Ok(())
    }
}

fn before(now_ms: u64, kept: Duration) -> u64 {
    now_ms.saturating_sub(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX))
}
