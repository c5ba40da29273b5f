//! What happened by day: counted from the record's rows, a step at a time.

use std::time::Duration;

use cadre_store::rows::upkeep::{DayUsage, RefreshState, UsageFilter};

use super::{DomainError, Service};

/// What is younger is not counted for good yet: a row gets its time before it is committed.
const SETTLED_AFTER: Duration = Duration::from_secs(120);
/// A refresh that has not ended after so long belongs to a server that is gone.
const STALE_AFTER: Duration = Duration::from_secs(600);

impl Service {
    /// Counts all that has settled at `now_ms` (Unix milliseconds).
    ///
    /// # Errors
    /// The record's. What was counted stays counted.
    pub async fn count_usage(&self, now_ms: u64) -> Result<(), DomainError> {
        let to_ms = now_ms.saturating_sub(ms(SETTLED_AFTER));
        while self.0.store.count_usage(to_ms, now_ms).await? {
            if self.0.stopping.is_cancelled() {
                break;
            }
        }
        Ok(())
    }

    /// Days that match, oldest first, up to this moment.
    ///
    /// # Errors
    /// The record's.
    pub async fn usage(&self, filter: UsageFilter) -> Result<Vec<DayUsage>, DomainError> {
        Ok(self.0.store.usage(filter, self.now_ms()).await?)
    }

    /// Begins a refresh that somebody asked for. False while another one is under way, on whichever server.
    ///
    /// # Errors
    /// The record's.
    pub async fn begin_refresh(&self) -> Result<bool, DomainError> {
        let now_ms = self.now_ms();
        Ok(self.0.store.begin_refresh(now_ms, now_ms.saturating_sub(ms(STALE_AFTER))).await?)
    }

    /// Does it, and notes how it went.
    ///
    /// # Errors
    /// The record's.
    pub async fn refresh_usage(&self) -> Result<(), DomainError> {
        let counted = self.count_usage(self.now_ms()).await;
        // For readers, who must not see the cause.
        let error = counted.as_ref().err().map(|error| error.code().as_str().to_owned());
        self.0.store.end_refresh(self.now_ms(), error).await?;
        counted
    }

    /// The same in the background.
    pub fn refresh_usage_later(&self) {
        let service = self.clone();
        self.spawn(async move {
            if let Err(error) = service.refresh_usage().await {
                tracing::warn!(%error, "the refresh of the metrics has failed");
            }
        });
    }

    /// How the last refresh went.
    ///
    /// # Errors
    /// The record's.
    pub async fn refresh_state(&self) -> Result<RefreshState, DomainError> {
        Ok(self.0.store.refresh_state().await?)
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
