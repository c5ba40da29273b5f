//! What nobody takes care of: after a restart, and whenever news were lost.

use std::time::Duration;

use cadre_protocol::run::RunStatus;
use cadre_store::rows::{Change, RunFilter, RunRow, Waiting};
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
/// How long workers that outlived the server may take to dial in.
const RETURN_TIME: Duration = Duration::from_secs(15);

impl Service {
    /// Runs that an earlier server had given to workers: those whose workers don't come back are placed again.
    pub(crate) async fn recover(self) {
        // What waits for no worker's return is placed at once.
        if let Err(error) = self.sweep_once().await {
            tracing::warn!(error = %error, "waiting runs can't be looked up now");
        }
        if self.0.placement.workers_survive() {
            tokio::select! {
                () = tokio::time::sleep(RETURN_TIME) => {}
                () = self.0.stopping.cancelled() => return,
            }
        }
        while let Err(error) = self.release_lost_leases().await {
            tracing::warn!(error = %error, "running runs can't be looked up now");
            tokio::select! {
                () = tokio::time::sleep(self.0.limits.sweep_every) => {}
                () = self.0.stopping.cancelled() => return,
            }
        }
        if let Err(error) = self.sweep_once().await {
            tracing::warn!(error = %error, "waiting runs can't be looked up now");
        }
    }

    async fn release_lost_leases(&self) -> Result<(), DomainError> {
        let mut offset = 0;
        loop {
            let filter =
                RunFilter { status: Some(RunStatus::Running), offset, limit: u64::from(PAGE), ..RunFilter::default() };
            let (runs, _) = self.0.store.list(filter).await?;
            for run in &runs {
                self.release_if_lost(run).await?;
            }
            if runs.len() < PAGE as usize {
                return Ok(());
            }
            offset += u64::from(PAGE);
        }
    }

    async fn release_if_lost(&self, run: &RunRow) -> Result<(), DomainError> {
        if let Some(lease) = self.0.store.lease(&run.session_id).await?
            && !self.board().is_connected(&lease)
            && self.board().running(&run.run_id).is_none()
        {
            self.0.store.release(&run.session_id, &lease).await?;
        }
        Ok(())
    }

    /// Looks every few seconds for heads of lines that nobody places.
    pub(crate) async fn sweep(self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.0.limits.sweep_every) => {}
                () = self.0.stopping.cancelled() => return,
            }
            if let Err(error) = self.sweep_once().await {
                tracing::warn!(error = %error, "waiting runs can't be looked up now");
            }
        }
    }

    pub(crate) async fn sweep_once(&self) -> Result<(), DomainError> {
        for waiting in self.0.store.waiting(PAGE).await? {
            if waiting.status == RunStatus::Running && self.end_if_due(&waiting).await? {
                continue;
            }
            self.place(waiting).await;
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
        self.end_run(&run.run_id, end).await;
        Ok(true)
    }

    /// Passes on what other servers write to the same database.
    pub(crate) async fn watch_record(self) {
        let Some(mut changes) = self.0.store.changes() else { return };
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = self.0.stopping.cancelled() => return,
            };
            match change {
                Ok(Change::Run(run_id)) => self.0.hub.wake(&run_id),
                Ok(Change::Missed) | Err(RecvError::Lagged(_)) => self.0.hub.wake_all(),
                Err(RecvError::Closed) => return,
            }
        }
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
                Ok(PlacementEvent::Ended(worker_id)) => self.worker_ended(&worker_id).await,
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
                    let seat = expired.into_inner();
                    self.retire(&seat.session_id, &seat).await;
                }
                () = self.0.stopping.cancelled() => return,
            }
        }
    }
}
