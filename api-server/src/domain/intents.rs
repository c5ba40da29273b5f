//! Cancels of runs that are not there yet.

use std::time::Duration;

use cadre_protocol::ids::RunId;
use cadre_store::rows::Principal;

use super::{DomainError, Service};

/// How long a cancel waits for its run.
const KEEP: Duration = Duration::from_secs(24 * 3600);

impl Service {
    /// Remembers a cancel for a day: a run that is accepted under this id ends at once. `principal` limits it to its own
    /// runs. False when there is such a run by now.
    ///
    /// # Errors
    /// The record's.
    pub async fn cancel_later(&self, run_id: &RunId, principal: Option<&Principal>) -> Result<bool, DomainError> {
        let keep_ms = u64::try_from(KEEP.as_millis()).unwrap_or(u64::MAX);
        Ok(self.0.store.cancel_later(run_id, principal, self.now_ms().saturating_add(keep_ms)).await?)
    }
}
