//! The queue as its operators see it: a job is a run, its id the run's.

use std::time::Duration;

use cadre_protocol::ids::RunId;
use cadre_protocol::run::RunStatus;
use cadre_store::rows::jobs::{JobFilter, JobRow};
use cadre_store::rows::{Origin, RunRow};

use super::{DomainError, Service};

/// For so long after a failure something of the run may still be under way.
const JUST_FAILED: Duration = Duration::from_secs(60);
/// For so long a cancel stands.
const CANCEL_STANDS: Duration = Duration::from_secs(24 * 3600);

/// How a job may be run once more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requeue {
    /// Although it was cancelled.
    pub clear_cancellation: bool,
    /// Although it has failed a moment ago.
    pub force: bool,
}

/// What is done with the wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Run,
    /// Its cancel stands.
    Leave,
    JustFailed,
    Refuse,
}

/// What to do about a run that ended `age` ago.
fn verdict(status: RunStatus, of_object: bool, age: Duration, wish: Requeue) -> Verdict {
    match status {
        // Its object has told the end already.
        RunStatus::Error | RunStatus::Cancelled if of_object => Verdict::Refuse,
        RunStatus::Error if !wish.force && age < JUST_FAILED => Verdict::JustFailed,
        RunStatus::Cancelled if !wish.clear_cancellation && age < CANCEL_STANDS => Verdict::Leave,
        RunStatus::Error | RunStatus::Cancelled => Verdict::Run,
        _ => Verdict::Refuse,
    }
}

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
    /// Runs a job once more that has failed or was cancelled: the same run goes on from its journal, for one attempt. A
    /// cancel of the last day stands unless the wish says otherwise: the job is then answered as it is.
    ///
    /// # Errors
    /// [`DomainError::RunNotFound`]; [`DomainError::NotRequeueable`]; [`DomainError::JustFailed`].
    pub async fn requeue(&self, run_id: &RunId, wish: Requeue) -> Result<JobRow, DomainError> {
        if self.0.stopping.is_cancelled() {
            return Err(DomainError::ShuttingDown);
        }
        let (service, run_id) = (self.clone(), run_id.clone());
        // What is durable is placed even if the caller goes away.
        let task = self.0.tasks.spawn(async move { service.run_again(&run_id, wish).await });
        task.await.unwrap_or(Err(DomainError::ShuttingDown))
    }

    async fn run_again(&self, run_id: &RunId, wish: Requeue) -> Result<JobRow, DomainError> {
        let detail = self.detail(run_id, None).await?;
        let RunRow { status, origin, finished_at_ms, created_at_ms, .. } = &detail.run;
        let ended_ms = finished_at_ms.unwrap_or(*created_at_ms);
        let age = Duration::from_millis(self.now_ms().saturating_sub(ended_ms));
        match verdict(*status, matches!(origin, Origin::RunObject { .. }), age, wish) {
            Verdict::Run => {}
            Verdict::Leave => return self.job(run_id).await,
            Verdict::JustFailed => return Err(DomainError::JustFailed(run_id.to_string(), JUST_FAILED.as_secs())),
            Verdict::Refuse => return Err(DomainError::NotRequeueable(run_id.to_string())),
        }
        match self.resume_run(&detail, None, Some(0), None).await? {
            Some(_) => self.job(run_id).await,
            None => Err(DomainError::NotRequeueable(run_id.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_failed_or_was_cancelled_is_run_again() {
        let plain = Requeue::default();
        let (force, clear) = (Requeue { force: true, ..plain }, Requeue { clear_cancellation: true, ..plain });
        let (second, hour, days) = (Duration::from_secs(1), Duration::from_secs(3600), Duration::from_secs(3 * 86_400));
        for (status, of_object, age, wish, expected) in [
            (RunStatus::Error, false, hour, plain, Verdict::Run),
            (RunStatus::Error, false, second, plain, Verdict::JustFailed),
            (RunStatus::Error, false, second, clear, Verdict::JustFailed),
            (RunStatus::Error, false, second, force, Verdict::Run),
            (RunStatus::Error, true, hour, force, Verdict::Refuse),
            (RunStatus::Cancelled, false, hour, force, Verdict::Leave),
            (RunStatus::Cancelled, false, second, clear, Verdict::Run),
            (RunStatus::Cancelled, false, days, plain, Verdict::Run),
            (RunStatus::Cancelled, true, days, clear, Verdict::Refuse),
            (RunStatus::Completed, false, days, force, Verdict::Refuse),
            (RunStatus::Regenerated, false, days, force, Verdict::Refuse),
            (RunStatus::Pending, false, days, force, Verdict::Refuse),
            (RunStatus::Running, false, days, force, Verdict::Refuse),
            (RunStatus::Paused, false, days, force, Verdict::Refuse),
        ] {
            assert_eq!(verdict(status, of_object, age, wish), expected, "{status:?} {age:?} {wish:?}");
        }
    }
}
