//! Placement: the head of a line gets the worker that is there, or one is asked for.

use std::sync::Arc;

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::{ComponentRef, RunId, SessionId};
use cadre_protocol::run::{RunEnd, RunFailure};
use cadre_protocol::worker::{Assignment, ServerFrame};
use cadre_store::rows::{Change, Lease, StartedRun, Waiting};

use super::Service;
use super::lease::lease_of;
use super::scope::{RunScope, Writer, deadline_ms};
use super::seat::Step;
use super::seen::Seen;
use crate::placement::{PlacementError, Wanted};

impl Service {
    /// Places a run in the background.
    pub(crate) fn place_soon(&self, waiting: Waiting) {
        let service = self.clone();
        self.spawn(async move { service.place(waiting).await });
    }

    /// Places a run by its id, if it still waits for a worker.
    pub(crate) async fn place_run(&self, run_id: &RunId) {
        match self.0.store.waiting_run(run_id).await {
            Ok(Some(waiting)) => self.place(waiting).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(run_id = %run_id, category = error.category(), "run waits for the next sweep"),
        }
    }

    /// Gives the head of a line to a worker or asks for one. Doing it again changes nothing.
    pub(crate) async fn place(&self, waiting: Waiting) {
        let (again, step) = {
            let mut board = self.board();
            (board.is_wanted(&waiting), board.claim(&waiting))
        };
        match step {
            Step::Nothing => {}
            Step::Start(writer, lease) => self.start_run(&waiting, &writer, lease).await,
            Step::Ensure => {
                // Another replica may have the session's worker.
                self.0.store.tell(Change::Waiting(waiting.run_id.clone()));
                self.ensure(&waiting, again).await;
            }
        }
    }

    /// Another replica says that a run waits: it is placed if a worker that could have it is here.
    pub(crate) async fn place_if_here(&self, run_id: &RunId) {
        match self.0.store.waiting_run(run_id).await {
            Ok(Some(waiting)) if self.board().has_worker_for(&waiting.session_id) => self.place(waiting).await,
            Ok(_) => {}
            Err(error) => tracing::warn!(run_id = %run_id, category = error.category(), "run waits for the next sweep"),
        }
    }

    /// Places what waits in a session, in the background: news of it may have come while the session was busy here.
    pub(crate) fn place_waiting_in(&self, session_id: &SessionId) {
        let (service, session_id) = (self.clone(), session_id.clone());
        self.spawn(async move {
            match service.0.store.waiting_in(&session_id).await {
                Ok(Some(waiting)) => service.place(waiting).await,
                Ok(None) => {}
                Err(error) => tracing::warn!(category = error.category(), "a run may wait for the next sweep"),
            }
        });
    }

    /// Gives free slots in the background, if runs of the component need slots.
    pub(crate) fn grant_soon(&self, component: &ComponentRef, agent: Option<&AgentSnapshot>) {
        let limited = |agent: &AgentSnapshot| agent.max_concurrent_sessions.is_some();
        let is_limited = match agent {
            Some(agent) => limited(agent),
            None => self.agent(component).is_some_and(|agent| agent.snapshot().is_some_and(|agent| limited(agent))),
        };
        if !self.limits_slots() && !is_limited {
            return;
        }
        let (service, component) = (self.clone(), component.clone());
        self.spawn(async move {
            if let Err(error) = service.grant(Some(&component)).await {
                tracing::warn!(category = error.category(), "slots are given with the next sweep");
            }
        });
    }

    async fn start_run(&self, waiting: &Waiting, writer: &Writer, lease: Option<Lease>) {
        let Waiting { run_id, session_id, .. } = waiting;
        let Writer { worker_id, registration } = writer;
        let now = self.now_ms();
        let started = match &lease {
            Some(lease) => self.0.store.start(run_id, lease, now).await,
            None => self.0.store.take(run_id, worker_id, registration, now).await,
        };
        match started {
            Ok(Some(started)) => {
                let lease = lease_of(writer, started.epoch);
                self.assign(started, lease).await;
            }
            // It has ended, or is not the head any more, or another replica was faster, or the lease is spent: whatever
            // still waits is swept up.
            Ok(None) => self.release_seat(session_id, run_id, false),
            Err(error) => {
                tracing::warn!(run_id = %run_id, error = %error, "run can't be started now");
                self.release_seat(session_id, run_id, false);
                self.place_later(waiting.clone());
            }
        }
    }

    /// Places a run when the database has had time to come back.
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
        let seen = match self.0.hub.audience(&started.run.run_id) {
            Some(_) => Seen::of(&started),
            None => Seen::nothing(),
        };
        let scope = Arc::new(RunScope::new(&started.run, started.agent.clone(), started.epoch, seen));
        let of_object = scope.of_object.then(|| started.run.clone());
        let frame = ServerFrame::Assign(Box::new(assignment(started)));
        let there = self.board().started(scope.clone(), lease.clone(), frame);
        if !there {
            self.release_lease(&scope.session_id, &lease).await;
            self.place_soon(scope.waiting());
            return;
        }
        self.tell(of_object.as_ref().map(|run| &run.run_id));
        self.arm_deadline(&scope);
        if cancel {
            self.end_run(&scope.run_id, cancelled("cancelled before a worker had it"), Some(scope.epoch)).await;
        }
    }

    /// Asks for a worker. `again`: not for the first time.
    async fn ensure(&self, waiting: &Waiting, again: bool) {
        let Waiting { run_id, session_id, component, .. } = waiting;
        // The news that it waits may be old: no pod for a run that has ended, or runs elsewhere.
        if let Ok(None) = self.0.store.waiting_run(run_id).await {
            self.release_seat(session_id, run_id, true);
            return;
        }
        let wanted = Wanted { session_id: session_id.clone(), component: component.clone() };
        match self.0.placement.ensure(&wanted).await {
            Ok(()) => {}
            Err(PlacementError::Full(reason)) => self.hold_up(waiting, &reason, again).await,
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
                self.end_run(run_id, RunEnd::Error(failure), None).await;
            }
        }
    }

    /// Frees a seat.
    pub(crate) fn release_seat(&self, session_id: &SessionId, run_id: &RunId, keep_lease: bool) {
        let idle = self.board().vacate(session_id, run_id, keep_lease);
        if let Some(idle) = idle {
            let _ = self.0.idle.send((self.0.limits.unused_wait, idle));
        }
    }

    pub(crate) async fn release_lease(&self, session_id: &SessionId, lease: &Lease) {
        if let Err(error) = self.0.store.release(session_id, lease).await {
            tracing::warn!(session_id = %session_id, category = error.category(), "lease can't be released now");
        }
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
        uploads: started.uploads,
        session_state: started.session_state,
        deadline_ms,
    }
}
