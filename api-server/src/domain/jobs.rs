//! The queue as its operators see it: a job is a run, its id the run's.

use cadre_protocol::ids::RunId;
use cadre_store::rows::jobs::{JobFilter, JobRow};

use super::{DomainError, Service};

impl Service {
    /// A page of the jobs that match, with the number of all.
    ///
    /// # Errors
    /// The record's.
    pub async fn jobs(&self, filter: JobFilter) -> Result<(Vec<JobRow>, u64), DomainError> {
        Ok(self.0.store.jobs(filter).await?)
    }

    /// A job.
    ///
    /// # Errors
    /// [`DomainError::RunNotFound`].
    pub async fn job(&self, run_id: &RunId) -> Result<JobRow, DomainError> {
        self.0.store.job(run_id).await?.ok_or_else(|| DomainError::RunNotFound(run_id.to_string()))
    }
}
