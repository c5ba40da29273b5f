//! Placement: the head of a line gets the worker that is there, or one is asked for.

use std::sync::Arc;

use cadre_protocol::ids::{ComponentRef, RunId, SessionId};
use cadre_protocol::run::{RunEnd, RunFailure};
use cadre_protocol::worker::{Assignment, ServerFrame};
use cadre_store::rows::{Lease, StartedRun, Waiting};

use super::Service;
use super::accept::waiting;
use super::scope::{RunScope, Writer, deadline_ms};
use super::seat::Step;
use crate::placement::{PlacementError, Wanted};

impl Service {
    /// Places a run in the background.
    pub(crate) fn place_soon(&self, waiting: Waiting) {
        let service = self.clone();
        self.spawn(async move { service.place(waiting).await });
    }

    /// Places a run by its id, if it still waits.
    pub(crate) async fn place_run(&self, run_id: &RunId) {
        match self.0.store.run(run_id).await {
            Ok(Some(run)) if !run.status.is_terminal() => self.place(waiting(&run)).await,
            Ok(_) => {}
            Err(error) => tracing::warn!(run_id = %run_id, category = error.category(), "run waits for the next sweep"),
        }
    }

    /// Gives the head of a line to a worker or asks for one. Doing it again changes nothing.
    pub(crate) async fn place(&self, waiting: Waiting) {
        let max_sessions = self.max_sessions(&waiting.component);
        let step = self.board().claim(&waiting, max_sessions);
        match step {
            Step::Nothing | Step::Queued => {}
            Step::Start(writer, lease) => self.start_run(&waiting, &writer, lease).await,
            Step::Ensure => self.ensure(&waiting).await,
        }
    }

    async fn start_run(&self, waiting: &Waiting, writer: &Writer, lease: Option<Lease>) {
        let Waiting { run_id, session_id, .. } = waiting;
        let started = async {
            let lease = match lease {
                Some(lease) => lease,
                None => self.acquire(session_id, writer).await?,
            };
            let started = self.0.store.start(run_id, &lease, self.now_ms()).await?;
            Ok::<_, super::DomainError>((started, lease))
        };
        match started.await {
            Ok((Some(started), lease)) => self.assign(started, lease).await,
            // It has ended, or is not the head any more, or the lease is spent: whatever still waits is swept up.
            Ok((None, _)) => self.release_seat(session_id, run_id, false),
            Err(error) => {
                tracing::warn!(run_id = %run_id, error = %error, "run can't be started now");
                self.release_seat(session_id, run_id, false);
                self.place_later(waiting.clone());
            }
        }
    }

    /// Places a run when the database has had time to come back. No sweep finds a running one whose lost worker's lease
    /// could not be released.
    fn place_later(&self, waiting: Waiting) {
        let service = self.clone();
        self.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(service.0.limits.sweep_every) => service.place(waiting).await,
                () = service.0.stopping.cancelled() => {}
            }
        });
    }

    /// Hands a started run to the worker of its lease.
    pub(crate) async fn assign(&self, started: StartedRun, lease: Lease) {
        // A run that is resumed by the process that had it gets another epoch.
        let lease = Lease { epoch: started.epoch, ..lease };
        let cancel = started.run.cancel_requested;
        let scope = Arc::new(RunScope::new(&started.run, started.agent.clone(), started.epoch));
        let run = started.run.clone();
        let frame = ServerFrame::Assign(Box::new(assignment(started)));
        let there = self.board().started(scope.clone(), lease.clone(), frame);
        if !there {
            self.release_lease(&scope.session_id, &lease).await;
            self.place_soon(scope.waiting());
            return;
        }
        self.tell_change(&run);
        self.arm_deadline(&scope);
        if cancel {
            self.end_run(&scope.run_id, cancelled("cancelled before a worker had it")).await;
        }
    }

    async fn ensure(&self, waiting: &Waiting) {
        let Waiting { run_id, session_id, component, .. } = waiting;
        // The news that it waits may be old: no pod for a run that has ended.
        if let Ok(Some(run)) = self.0.store.run(run_id).await
            && run.status.is_terminal()
        {
            self.release_seat(session_id, run_id, true);
            return;
        }
        let wanted = Wanted { session_id: session_id.clone(), component: component.clone() };
        match self.0.placement.ensure(&wanted).await {
            Ok(()) => {}
            Err(error @ PlacementError::Unavailable(_)) => {
                tracing::warn!(run_id = %run_id, session_id = %session_id, error = %error, "will be asked for again");
            }
            Err(error @ PlacementError::Impossible(_)) => {
                let failure = RunFailure {
                    error_type: "placement_failed".into(),
                    error_id: None,
                    message: error.to_string(),
                    retryable: false,
                };
                self.end_run(run_id, RunEnd::Error(failure)).await;
            }
        }
    }

    /// Frees a seat and gives its slot to those who wait for one.
    pub(crate) fn release_seat(&self, session_id: &SessionId, run_id: &RunId, keep_lease: bool) {
        let idle = self.board().vacate(session_id, run_id, keep_lease);
        if let Some(idle) = idle {
            let _ = self.0.idle.send((self.0.limits.unused_wait, idle));
        }
        self.pump();
    }

    /// Places what waits for slots, as far as there are slots.
    pub(crate) fn pump(&self) {
        let Some(first) = self.board().next_of_backlog() else { return };
        let service = self.clone();
        self.spawn(async move {
            let mut next = Some(first);
            while let Some(waiting) = next {
                service.place(waiting).await;
                next = service.board().next_of_backlog();
            }
        });
    }

    pub(crate) async fn release_lease(&self, session_id: &SessionId, lease: &Lease) {
        if let Err(error) = self.0.store.release(session_id, lease).await {
            tracing::warn!(session_id = %session_id, category = error.category(), "lease can't be released now");
        }
    }

    fn max_sessions(&self, component: &ComponentRef) -> Option<u32> {
        self.0.catalog.agent(component)?.snapshot()?.max_concurrent_sessions
    }
}

/// The end of a run that was cancelled without its worker's doing.
pub(crate) fn cancelled(reason: &str) -> RunEnd {
    RunEnd::Cancelled { content: String::new(), reason: reason.to_owned() }
}

/// What a worker is told.
pub(crate) fn assignment(started: StartedRun) -> Assignment {
    let deadline_ms = deadline_ms(&started.run);
    Assignment {
        run_id: started.run.run_id,
        session_id: started.run.session_id,
        epoch: started.epoch,
        attempt: started.run.attempt,
        agent: (*started.agent).clone(),
        revision: started.run.revision,
        input: started.run.input,
        history: started.history,
        progress: started.progress,
        effects: started.effects,
        session_state: started.session_state,
        deadline_ms,
    }
}
