//! Waiting for a run's end, for callers that want the answer and no stream.

use std::time::Duration;

use cadre_protocol::ids::RunId;
use cadre_store::StoreError;
use cadre_store::rows::{RunDetail, RunRow};

use super::hub::{Listener, Wants};
use super::{DomainError, Service};

/// Longest time without a look into the record: the run may live on another replica, and news of it may be lost.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

impl Service {
    /// Waits until a run has ended, or waits for a person. While the database is away this waits too: the run is accepted.
    ///
    /// # Errors
    /// [`DomainError::NotEnded`] after `timeout`, or when the server stops; the run goes on.
    /// [`DomainError::RunNotFound`].
    pub async fn wait_end(&self, run_id: &RunId, timeout: Duration) -> Result<RunDetail, DomainError> {
        let mut listener = self.0.hub.listen(run_id, Wants::End);
        let mut last = None;
        let end = async {
            match self.look(run_id, false, &mut last).await? {
                Some(detail) => Ok(detail),
                None => self.watch(run_id, &mut listener, &mut last).await,
            }
        };
        match self.at_most(timeout, end).await {
            Some(end) => end,
            None => Err(not_ended(run_id, last)),
        }
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
        let mut last = None;
        match self.at_most(timeout, self.watch(run_id, &mut listener, &mut last)).await {
            Some(end) => end,
            None => Err(not_ended(run_id, last)),
        }
    }

    /// What comes of it, unless the time is over or the server stops before.
    async fn at_most<T>(&self, timeout: Duration, end: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            end = end => Some(end),
            () = tokio::time::sleep(timeout) => None,
            () = self.0.stopping.cancelled() => None,
        }
    }

    async fn watch(
        &self,
        run_id: &RunId,
        listener: &mut Listener,
        last: &mut Option<RunRow>,
    ) -> Result<RunDetail, DomainError> {
        loop {
            let ended = tokio::select! {
                Ok(()) = listener.ended.changed() => true,
                Ok(()) = listener.news.changed() => false,
                () = tokio::time::sleep(LOOK_AGAIN) => false,
            };
            if ended && let Some(detail) = listener.take_seen() {
                return Ok(*detail);
            }
            if let Some(detail) = self.look(run_id, ended, last).await? {
                return Ok(detail);
            }
        }
    }

    /// The run, if it is at rest or has ended at least once. None too when the record does not answer: it is asked again.
    async fn look(
        &self,
        run_id: &RunId,
        ended: bool,
        last: &mut Option<RunRow>,
    ) -> Result<Option<RunDetail>, DomainError> {
        let looked = async {
            if !ended {
                let run = self.run(run_id, None).await?;
                let at_rest = run.status.is_at_rest();
                *last = Some(run);
                if !at_rest {
                    return Ok(None);
                }
            }
            self.detail(run_id, None).await.map(Some)
        };
        match looked.await {
            Err(DomainError::Store(error)) if !matches!(error, StoreError::Corrupt(_)) => {
                tracing::warn!(run_id = %run_id, category = error.category(), "a run's end can't be looked up now");
                Ok(None)
            }
            looked => looked,
        }
    }
}

fn not_ended(run_id: &RunId, last: Option<RunRow>) -> DomainError {
    DomainError::NotEnded(run_id.clone(), last.map(Box::new))
}
