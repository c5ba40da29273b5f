//! Waiting for a run's end, for callers that want the answer and no stream.

use std::time::Duration;

use cadre_protocol::ids::RunId;
use cadre_store::rows::RunDetail;

use super::hub::{Listener, Wants};
use super::{DomainError, Service};

/// Longest time without a look into the record: the run may live on another replica, and news of it may be lost.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

impl Service {
    /// Waits until a run has ended, or waits for a person.
    ///
    /// # Errors
    /// [`DomainError::NotEnded`] after `timeout`; the run goes on. [`DomainError::RunNotFound`].
    pub async fn wait_end(&self, run_id: &RunId, timeout: Duration) -> Result<RunDetail, DomainError> {
        let listener = self.0.hub.listen(run_id, Wants::End);
        if self.run(run_id, None).await?.status.is_at_rest() {
            return self.detail(run_id, None).await;
        }
        self.wait_for(run_id, listener, timeout).await
    }

    /// The same for a run that somebody has listened to since before it could end.
    ///
    /// # Errors
    /// As [`Self::wait_end`].
    pub async fn wait_for(
        &self,
        run_id: &RunId,
        mut listener: Listener,
        timeout: Duration,
    ) -> Result<RunDetail, DomainError> {
        let until = tokio::time::Instant::now() + timeout;
        loop {
            tokio::select! {
                Ok(()) = listener.ended.changed() => {
                    return match listener.take_seen() {
                        Some(detail) => Ok(*detail),
                        None => self.detail(run_id, None).await,
                    };
                }
                Ok(()) = listener.news.changed() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = tokio::time::sleep_until(until) => return Err(DomainError::NotEnded(run_id.clone())),
                () = self.0.stopping.cancelled() => return Err(DomainError::ShuttingDown),
            }
            if self.run(run_id, None).await?.status.is_at_rest() {
                return self.detail(run_id, None).await;
            }
        }
    }
}
