//! What nobody takes care of: after the death of a replica, and whenever news were lost.

use std::time::Duration;

use cadre_protocol::run::RunStatus;
use cadre_store::rows::Waiting;
use futures::StreamExt;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::time::DelayQueue;

use super::finish::timed_out;
use super::place::cancelled;
use super::scope::deadline_ms;
use super::seat::IdleSeat;
use super::{DomainError, Service};
use crate::placement::PlacementEvent;

/// Runs looked at in one go.
const PAGE: u32 = 1000;
/// Milliseconds for which a new run is left to the replica that has accepted it.
const YOUNG_MS: u64 = 3_000;

impl Service {
    /// Looks every few seconds, or when news were lost, for what nobody takes care of.
    pub(crate) async fn sweep(self) {
        loop {
            if let Err(error) = self.sweep_once().await {
                tracing::warn!(error = %error, "what nobody takes care of can't be looked up now");
            }
            tokio::select! {
                () = tokio::time::sleep(self.0.limits.sweep_every) => {}
                () = self.0.sweep_now.notified() => {}
                () = self.0.stopping.cancelled() => return,
            }
        }
    }

    pub(crate) async fn sweep_once(&self) -> Result<(), DomainError> {
        self.release_lost().await?;
        self.grant(None).await?;
        let waiting = self.0.store.waiting(PAGE).await?;
        for run in &waiting {
            if run.status == RunStatus::Running && self.end_if_due(run).await? {
                continue;
            }
            if self.is_anothers(run) {
                continue;
            }
            self.place(run.clone()).await;
        }
        self.forget_wanted(&waiting).await?;
        self.compare().await
    }

    /// Frees the runs of workers that no replica has any more. Several replicas may do it at once.
    async fn release_lost(&self) -> Result<(), DomainError> {
        let Some(silence) = self.silence() else { return Ok(()) };
        for run in self.0.store.release_lost(&self.0.replica, silence).await? {
            tracing::info!(run_id = %run.waiting.run_id, worker_id = %run.lease.worker_id, "worker lost with its replica");
            self.0.metrics.replaced();
            self.0.placement.lost(&run.lease.worker_id);
        }
        Ok(())
    }

    /// A run that was accepted a moment ago by another replica, which asks for its worker: two that ask at once might
    /// make two.
    fn is_anothers(&self, waiting: &Waiting) -> bool {
        let is_young = self.now_ms().saturating_sub(waiting.created_at_ms) < YOUNG_MS;
        let board = self.board();
        waiting.status == RunStatus::Pending
            && is_young
            && self.0.shared
            && !board.knows(&waiting.session_id)
            && !board.has_worker_for(&waiting.session_id)
    }

    /// Runs that wait here for a worker, but have one elsewhere or have ended.
    async fn forget_wanted(&self, waiting: &[Waiting]) -> Result<(), DomainError> {
        let wanted = self.board().wanted();
        for run in wanted.iter().filter(|run| waiting.iter().all(|waiting| waiting.run_id != run.run_id)) {
            if self.0.store.waiting_run(&run.run_id).await?.is_none() {
                self.release_seat(&run.session_id, &run.run_id, true);
            }
        }
        Ok(())
    }

    /// Compares the board with the record: runs that a worker here should have and has not, and the other way round.
    async fn compare(&self) -> Result<(), DomainError> {
        let before = self.board().all_running();
        let placed = self.0.store.runs_at(&self.0.replica).await?;
        for run_id in before.iter().filter(|run_id| placed.iter().all(|run| run.waiting.run_id != **run_id)) {
            self.leave_if_over(run_id).await;
        }
        for run in placed {
            self.look_after(run).await;
        }
        Ok(())
    }

    /// Ends a run that has lost its worker and has no time left, or is to be cancelled.
    async fn end_if_due(&self, waiting: &Waiting) -> Result<bool, DomainError> {
        let Some(run) = self.0.store.run(&waiting.run_id).await? else { return Ok(true) };
        let end = if run.cancel_requested {
            cancelled("cancelled by the caller")
        } else if deadline_ms(&run).is_some_and(|deadline| deadline <= self.now_ms()) {
            timed_out()
        } else {
            return Ok(false);
        };
        self.end_run(&run.run_id, end, None).await;
        Ok(true)
    }

    /// Takes note of workers that have ended.
    pub(crate) async fn watch_placement(self) {
        let mut events = self.0.placement.events();
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = self.0.stopping.cancelled() => return,
            };
            match event {
                Ok(PlacementEvent::Ended(worker_id)) => {
                    self.worker_ended(&worker_id).await;
                    self.place_is_free();
                }
                // Missed ends are noticed by silence.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Retires sessions' workers when their warm time is over.
    pub(crate) async fn retire_idle(self, mut idle: UnboundedReceiver<(Duration, IdleSeat)>) {
        let mut due: DelayQueue<IdleSeat> = DelayQueue::new();
        loop {
            tokio::select! {
                received = idle.recv() => match received {
                    Some((warm, seat)) => {
                        due.insert(seat, warm);
                    }
                    None => return,
                },
                Some(expired) = due.next(), if !due.is_empty() => {
                    let (service, seat) = (self.clone(), expired.into_inner());
                    // One that takes long must not hold up the others.
                    self.spawn(async move { service.retire(&seat.session_id, &seat).await });
                }
                () = self.0.stopping.cancelled() => return,
            }
        }
    }
}
