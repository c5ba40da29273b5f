//! Work of runs that waits for a database that is away: a run goes on after it, and does not fail.

use std::time::Duration;

use cadre_store::StoreError;

use super::Service;

/// First pause between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest one.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Service {
    /// Asks the record again and again as long as the database does not answer and this server does not stop. An answer may
    /// have been lost on its way: what must not be done twice has to recognize itself.
    ///
    /// # Errors
    /// The record's.
    pub(crate) async fn patiently<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match ask().await {
                Err(StoreError::Unavailable(why)) if !self.0.stopping.is_cancelled() => {
                    tracing::warn!(why, "the database does not answer; a run waits");
                }
                outcome => return outcome,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
