//! Runs: submitted once under their UID, followed by the feed, cancelled when told so or when the object is gone.

pub mod gone;
pub mod status;
pub mod submission;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cadre_crds::common::conditions::{FINISHED, READY, is_true};
use cadre_crds::run::{Run, RunStatus};
use cadre_protocol::feed::RunReport;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};

use self::status::View;
use crate::caches::Caches;
use crate::conditions::reason;
use crate::context::{Shared, now};
use crate::driver::{Outcome, Reconciler};
use crate::error::{Error, code, kubernetes};
use crate::events::Story;
use crate::feed::client::FeedError;
use crate::feed::follow::chain;
use crate::status::{Urgency, Written};

/// Time between tries while the API server is away, its queue full or the agent not ready there.
const RETRY: Duration = Duration::from_secs(2);

/// Reconciles Runs.
pub struct Controller {
    shared: Arc<Shared>,
    caches: Arc<Caches>,
    /// Runs whose cancel the API server has heard.
    cancelled: Mutex<HashSet<String>>,
}

impl Controller {
    /// For a scope.
    #[must_use]
    pub fn new(shared: Arc<Shared>, caches: Arc<Caches>) -> Self {
        Self { shared, caches, cancelled: Mutex::default() }
    }

    /// Where the run stands, after submitting it if that is due.
    async fn look(&self, run: &Run, old: &RunStatus) -> View {
        let uid = run.uid().unwrap_or_default();
        if let Some(report) = self.shared.feed.run(&uid) {
            return View::Reported(report);
        }
        let namespace = run.namespace().unwrap_or_default();
        if old.run_id.is_some() {
            return self.look_again(&namespace, &uid).await;
        }
        if run.spec.cancel {
            return self.cancel_unsubmitted(&namespace, &uid).await;
        }
        if !self.caches.has_agent(&namespace, &run.spec.target.name) {
            return View::AgentMissing;
        }
        self.submit(run).await
    }

    /// A run that was submitted and that the feed does not speak of: not yet, or because it ended long ago.
    async fn look_again(&self, namespace: &str, uid: &str) -> View {
        if !self.shared.feed.is_synced() {
            return View::Unchanged;
        }
        match self.shared.api.look(namespace, uid).await {
            Ok(Some(report)) => {
                self.shared.feed.submitted(report.clone());
                View::Reported(Arc::new(report))
            }
            Ok(None) => View::Forgotten,
            Err(error) => {
                tracing::warn!(namespace, uid, error = %chain(&error), "could not ask for a run; it is tried again");
                View::Unchanged
            }
        }
    }

    async fn submit(&self, run: &Run) -> View {
        match self.shared.api.submit(&submission::build(run)).await {
            Ok(report) => {
                self.shared.feed.submitted(report.clone());
                View::Reported(Arc::new(report))
            }
            Err(FeedError::Refused { detail, status }) if FeedError::is_rejected(status) => View::Rejected(detail),
            Err(FeedError::Refused { status: 404, .. }) => View::AgentMissing,
            Err(error) => View::Waiting(chain(&error)),
        }
    }

    /// A cancel that comes before the run exists; a lost answer may hide that it does.
    async fn cancel_unsubmitted(&self, namespace: &str, uid: &str) -> View {
        match self.shared.api.cancel(namespace, uid).await {
            Ok(Some(report)) => View::Reported(Arc::new(report)),
            Ok(None) => View::NeverRan,
            Err(error) => View::Waiting(chain(&error)),
        }
    }

    /// Passes `spec.cancel` on, once.
    async fn cancel(&self, run: &Run, report: &RunReport) -> Result<(), Error> {
        if !run.spec.cancel || report.status.is_terminal() || self.is_cancelled(&report.uid) {
            return Ok(());
        }
        let cancelled = self.shared.api.cancel(&report.namespace, &report.uid).await;
        cancelled.map_err(|error| Error::ApiServer(Box::new(error)))?;
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).insert(report.uid.clone());
        Ok(())
    }

    fn is_cancelled(&self, uid: &str) -> bool {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).contains(uid)
    }

    /// What is left to do for a run that has ended: delete the object when its time has come.
    async fn expire(&self, run: &Run, status: &RunStatus) -> Result<Outcome, Error> {
        let uid = run.uid().unwrap_or_default();
        self.shared.feed.forget_run(&uid);
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
        let Some(left) = status::time_left(run, status, &now()) else { return Ok(Outcome::default()) };
        if !left.is_zero() {
            return Ok(Outcome { again: Some(left), stories: Vec::new() });
        }
        let runs: Api<Run> = Api::namespaced(self.shared.client.clone(), &run.namespace().unwrap_or_default());
        let same = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams { preconditions: Some(same), ..DeleteParams::background() };
        match runs.delete(&run.name_any(), &params).await {
            Ok(_) => Ok(Outcome::default()),
            Err(error) if matches!(code(&error), 404 | 409) => Ok(Outcome::default()),
            Err(error) => Err(kubernetes("delete a finished Run")(error)),
        }
    }
}

impl Reconciler for Controller {
    type Kind = Run;
    const KIND: &'static str = "Run";

    async fn reconcile(&self, run: &Run) -> Result<Outcome, Error> {
        if run.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::default());
        }
        let old: RunStatus = self.shared.status.latest(&run.metadata, run.status.as_ref());
        if is_true(&old.conditions, FINISHED) {
            return self.expire(run, &old).await;
        }
        let view = self.look(run, &old).await;
        if let View::Reported(report) = &view {
            self.cancel(run, report).await?;
        }
        let new = status::observe(&old, &view, run.metadata.generation.unwrap_or_default(), &now());
        let urgency = if status::differ_in_stage(&old, &new) { Urgency::Now } else { Urgency::Paced };
        let (written, wait) = self.shared.write::<Run>(&run.metadata, &old, &new, urgency).await?;
        let stories = if written == Written::Yes { stories(&old, &new) } else { Vec::new() };
        let waits = matches!(view, View::Waiting(_) | View::AgentMissing | View::Unchanged);
        let retry = waits.then_some(RETRY);
        let left = is_true(&new.conditions, FINISHED).then(|| status::time_left(run, &new, &now())).flatten();
        Ok(Outcome { again: [wait, retry, left].into_iter().flatten().min(), stories })
    }
}

/// What people should know of a change.
fn stories(old: &RunStatus, new: &RunStatus) -> Vec<Story> {
    let mut stories = Vec::new();
    if let (None, Some(run_id), Some(session)) = (&old.run_id, &new.run_id, &new.session_id) {
        stories.push(Story::normal("RunSubmitted", "Submit", format!("run {run_id} of session {session}")));
    }
    let after = reason(&new.conditions, READY);
    if reason(&old.conditions, READY) == after {
        return stories;
    }
    let condition = new.conditions.iter().find(|condition| condition.type_ == READY);
    let message = condition.map(|condition| condition.message.clone()).unwrap_or_default();
    stories.extend(match after {
        "Completed" => Some(Story::normal("RunCompleted", "Finish", message)),
        "Cancelled" => Some(Story::normal("RunCancelled", "Finish", message)),
        "Failed" => Some(Story::warning("RunFailed", "Finish", message)),
        "Rejected" => Some(Story::warning("RunRejected", "Submit", message)),
        "Paused" => Some(Story::warning("RunPaused", "Wait", message)),
        "AgentNotFound" => Some(Story::warning("AgentNotFound", "Submit", message)),
        "ApiServerUnavailable" => Some(Story::warning("ApiServerUnavailable", "Submit", message)),
        _ => None,
    });
    stories
}

#[cfg(test)]
mod tests {
    use cadre_crds::common::conditions::{self, Truth};
    use cadre_crds::common::reasons::Reason;

    use super::*;

    fn ready(reason: Reason) -> RunStatus {
        let mut status = RunStatus::default();
        conditions::set(&mut status.conditions, READY, Truth::Unknown, reason, "why", 1, &now());
        status
    }

    #[test]
    fn a_pause_is_told_for_a_person_has_to_act() {
        let told = stories(&ready(Reason::Running), &ready(Reason::Paused));
        let [story] = told.as_slice() else { panic!("{} events", told.len()) };
        assert_eq!((story.reason, story.note.as_str()), ("RunPaused", "why"));
        assert!(stories(&ready(Reason::Paused), &ready(Reason::Paused)).is_empty());
    }
}
