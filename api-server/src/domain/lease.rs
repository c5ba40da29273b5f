//! Workers come: registration and reconnection. A lease in the record decides who may write.

use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId};
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::{HeldRun, ServerFrame};
use cadre_store::StoreError;
use cadre_store::rows::{Change, Lease};
use cadre_store::workers::{PlacedRun, WorkerRow};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use super::place::assignment;
use super::scope::{RunScope, Writer};
use super::seen::Seen;
use super::{DomainError, Service};
use crate::placement::Serves;

/// Pause before the record is told again of a worker.
pub(crate) const TELL_AGAIN: Duration = Duration::from_secs(1);

/// A worker that has said hello and proven who it is.
pub struct Arrival {
    /// The process.
    pub writer: Writer,
    /// Sessions that it takes.
    pub serves: Serves,
    /// Component of the session, for workers that serve one.
    pub component: Option<ComponentRef>,
    /// Runs that it is executing.
    pub held: Vec<HeldRun>,
    /// Frames to it that answer none of its own.
    pub control: UnboundedSender<ServerFrame>,
    /// Ends its connection.
    pub close: CancellationToken,
}

/// A worker on the board.
struct Arrived {
    writer: Writer,
    serves: Serves,
    component: Option<ComponentRef>,
    held: Vec<HeldRun>,
    control: UnboundedSender<ServerFrame>,
    link: u64,
}

impl Service {
    /// A worker is connected: it gets what is its own, loses what is not, and takes what waits. Answers the number of
    /// the connection.
    pub async fn connected(&self, arrival: Arrival) -> u64 {
        let Arrival { writer, serves, component, held, control, close } = arrival;
        let (link, orphans) = self.board().connected(&writer, &serves, control.clone(), close.clone());
        tracing::info!(worker_id = %writer.worker_id, runs = held.len(), "worker connected");
        for _ in orphans.iter().filter(|orphan| orphan.waiting.is_some()) {
            self.0.metrics.replaced();
        }
        // Recorded before its runs are looked up: after that, nobody takes it for lost.
        let recorded = self.0.store.register(&self.row(&writer, &serves)).await;
        let arrived = Arrived { writer, serves, component, held, control, link };
        // First what it has, then what it could have: else a run that it holds would begin again under another epoch.
        let is_reconciled = self.reconcile(&arrived).await;
        if recorded.is_ok() && is_reconciled {
            self.registered(&arrived).await;
        } else {
            tracing::warn!(worker_id = %arrived.writer.worker_id, "worker can't be registered now");
            self.register_later(arrived, close);
        }
        link
    }

    fn row(&self, writer: &Writer, serves: &Serves) -> WorkerRow {
        let session_id = match serves {
            Serves::Session(session_id) => Some(session_id.clone()),
            Serves::Any => None,
        };
        WorkerRow {
            worker_id: writer.worker_id.clone(),
            registration: writer.registration.clone(),
            replica: self.0.replica.clone(),
            session_id,
        }
    }

    /// Records again which workers are connected here.
    pub(crate) async fn register_again(&self) {
        let connected = self.board().registered_workers();
        for (writer, serves) in connected {
            if let Err(error) = self.0.store.register(&self.row(&writer, &serves)).await {
                tracing::warn!(category = error.category(), "workers can't be registered again now");
                return;
            }
            self.record_isolation(&writer);
        }
    }

    /// The record says that the worker is connected here; from now on it gets runs.
    async fn registered(&self, arrived: &Arrived) {
        let Arrived { writer, serves, component, link, .. } = arrived;
        if !self.board().registered(writer, *link) {
            return;
        }
        self.0.store.tell(Change::Worker(writer.worker_id.clone()));
        self.record_isolation(writer);
        if let Err(error) = self.take_up(writer, serves).await {
            tracing::warn!(worker_id = %writer.worker_id, category = error.category(), "runs wait for the next sweep");
        }
        if let (Serves::Session(session_id), Some(component)) = (serves, component) {
            let idle = self.board().rest(session_id, component);
            if let Some(idle) = idle {
                let _ = self.0.idle.send((self.0.limits.unused_wait, idle));
            }
        }
    }

    /// Tries again as long as the connection lasts.
    fn register_later(&self, arrived: Arrived, close: CancellationToken) {
        let service = self.clone();
        self.spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(TELL_AGAIN) => {}
                    () = close.cancelled() => return,
                    () = service.0.stopping.cancelled() => return,
                }
                let row = service.row(&arrived.writer, &arrived.serves);
                if service.0.store.register(&row).await.is_ok() && service.reconcile(&arrived).await {
                    return service.registered(&arrived).await;
                }
            }
        });
    }

    /// What the record has for a worker: runs whose assignment did not reach it, and those that wait.
    async fn take_up(&self, writer: &Writer, serves: &Serves) -> Result<(), StoreError> {
        for run in self.0.store.runs_of_worker(&writer.worker_id).await? {
            self.look_after(run).await;
        }
        let wanted = self.board().wanted_of(serves);
        for waiting in wanted {
            self.place_soon(waiting);
        }
        match serves {
            Serves::Session(session_id) => {
                if let Some(waiting) = self.0.store.waiting_in(session_id).await? {
                    self.place(waiting).await;
                }
            }
            Serves::Any => self.0.sweep_now.notify_one(),
        }
        Ok(())
    }

    /// A run that the record says a worker of this replica has: assigned if the board does not know it, cancelled if it
    /// should be.
    pub(crate) async fn look_after(&self, run: PlacedRun) {
        let run_id = &run.waiting.run_id;
        if self.board().claim_placed(&run) {
            match self.0.store.start(run_id, &run.lease, self.now_ms()).await {
                Ok(Some(started)) => self.assign(started, run.lease).await,
                Ok(None) => self.release_seat(&run.session_id, run_id, false),
                Err(error) => {
                    tracing::warn!(run_id = %run_id, category = error.category(), "run can't be assigned now");
                    self.release_seat(&run.session_id, run_id, false);
                }
            }
        } else if run.cancel_requested {
            self.cancel_here(run_id);
        }
    }

    /// Compares what the worker holds with what it should. False when the record did not answer, and this is to be done
    /// again.
    async fn reconcile(&self, Arrived { writer, held, control, .. }: &Arrived) -> bool {
        let mut is_complete = true;
        let expected = self.board().runs_of(writer);
        for (scope, lease) in &expected {
            let holds = held.iter().any(|run| run.run_id == scope.run_id && run.epoch == scope.epoch);
            if let Err(error) = self.remind(scope, lease, holds).await {
                is_complete &= !is_away(&error);
                tracing::warn!(run_id = %scope.run_id, error = %error, "worker can't be reminded of its run");
            }
        }
        for run in held {
            if expected.iter().any(|(scope, _)| scope.run_id == run.run_id && scope.epoch == run.epoch) {
                continue;
            }
            match self.adopt(writer, run).await {
                Ok(true) => {}
                Ok(false) => {
                    let _ = control.send(ServerFrame::Fenced { run_id: run.run_id.clone(), epoch: run.epoch });
                }
                Err(error) => {
                    is_complete &= !is_away(&error);
                    tracing::warn!(run_id = %run.run_id, error = %error, "held run can't be looked up");
                }
            }
        }
        is_complete
    }

    /// A run that the worker should have: assigned again if it does not hold it, cancelled again if it should be.
    async fn remind(&self, scope: &Arc<RunScope>, lease: &Lease, holds: bool) -> Result<(), DomainError> {
        if !holds {
            let started = self.0.store.start(&scope.run_id, lease, self.now_ms()).await?;
            match started {
                Some(started) => {
                    self.board().send(lease, ServerFrame::Assign(Box::new(assignment(started))));
                }
                None => {
                    self.release_seat(&scope.session_id, &scope.run_id, false);
                    return Ok(());
                }
            }
        }
        self.repeat_cancel(&scope.run_id, lease).await
    }

    async fn repeat_cancel(&self, run_id: &RunId, lease: &Lease) -> Result<(), DomainError> {
        if self.0.store.run(run_id).await?.is_some_and(|run| run.cancel_requested) {
            let reason = "cancelled by the caller".to_owned();
            let frame = ServerFrame::Cancel { run_id: run_id.clone(), epoch: lease.epoch, reason };
            self.board().send(lease, frame);
        }
        Ok(())
    }

    /// A run that the worker holds and this server does not know of. True when it is the worker's, or over.
    pub(crate) async fn adopt(&self, writer: &Writer, held: &HeldRun) -> Result<bool, DomainError> {
        let Some(run) = self.0.store.run(&held.run_id).await? else { return Ok(false) };
        if run.status != RunStatus::Running {
            // It has ended or paused, and perhaps waits to go on: its last batch is acknowledged or fenced when it comes again.
            return Ok(true);
        }
        if !self.has_lease(writer, &run.session_id, held.epoch).await? {
            return Ok(false);
        }
        // All of it is read only for whom it is.
        let Some(detail) = self.0.store.detail(&held.run_id, None).await? else { return Ok(false) };
        let lease = lease_of(writer, held.epoch);
        let scope = Arc::new(RunScope::new(&detail.run, detail.agent, held.epoch, Seen::nothing()));
        let is_new = self.board().adopt(scope.clone(), lease.clone());
        if is_new {
            self.arm_deadline(&scope);
            self.repeat_cancel(&scope.run_id, &lease).await?;
        }
        Ok(true)
    }

    /// The scope of a run that a worker asks something for and that this server does not know of yet: the record is asked
    /// until it is there. None when the run is not the worker's.
    pub async fn late_scope(&self, writer: &Writer, held: &HeldRun) -> Option<Arc<RunScope>> {
        loop {
            // Another call of the run may have been faster.
            if let Some(scope) = self.scope(writer, &held.run_id, held.epoch) {
                return Some(scope);
            }
            match self.adopt(writer, held).await {
                Ok(_) => return self.scope(writer, &held.run_id, held.epoch),
                Err(error) if is_away(&error) => tokio::time::sleep(TELL_AGAIN).await,
                Err(error) => {
                    tracing::warn!(run_id = %held.run_id, error = %error, "run of a call can't be looked up");
                    return None;
                }
            }
        }
    }

    /// Whether the record says that this process may write the session's runs.
    pub(crate) async fn has_lease(
        &self,
        writer: &Writer,
        session_id: &SessionId,
        epoch: Epoch,
    ) -> Result<bool, DomainError> {
        Ok(self.0.store.lease(session_id).await? == Some(lease_of(writer, epoch)))
    }
}

fn is_away(error: &DomainError) -> bool {
    matches!(error, DomainError::Store(StoreError::Unavailable(_)))
}

/// The right of a process under an epoch.
pub(crate) fn lease_of(writer: &Writer, epoch: Epoch) -> Lease {
    Lease { worker_id: writer.worker_id.clone(), registration: writer.registration.clone(), epoch }
}
