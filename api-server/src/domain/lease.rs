//! Workers come and go: registration, reconnection, loss. A lease in the record decides who may write.

use std::sync::Arc;

use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId, WorkerId};
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::{HeldRun, ServerFrame};
use cadre_store::rows::Lease;
use tokio::sync::mpsc::UnboundedSender;

use super::place::assignment;
use super::scope::{RunScope, Writer};
use super::seat::Orphan;
use super::{DomainError, Service};
use crate::placement::Serves;

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
}

impl Service {
    /// A worker is connected: it gets what is its own, loses what is not, and takes what waits. Answers the number of
    /// the connection.
    pub async fn connected(&self, arrival: Arrival) -> u64 {
        let Arrival { writer, serves, component, held, control } = arrival;
        let (link, orphans) = self.board().connected(&writer, &serves, control.clone());
        tracing::info!(worker_id = %writer.worker_id, runs = held.len(), "worker connected");
        self.adopt_orphans(orphans).await;
        self.reconcile(&writer, &held, &control).await;
        let wanted = self.board().wanted_of(&serves);
        for waiting in wanted {
            self.place_soon(waiting);
        }
        if let (Serves::Session(session_id), Some(component)) = (&serves, component) {
            let idle = self.board().rest(session_id, &component);
            if let Some(idle) = idle {
                let _ = self.0.idle.send((self.0.limits.unused_wait, idle));
            }
        }
        link
    }

    /// Compares what the worker holds with what it should.
    async fn reconcile(&self, writer: &Writer, held: &[HeldRun], control: &UnboundedSender<ServerFrame>) {
        let expected = self.board().runs_of(writer);
        for (scope, lease) in &expected {
            let holds = held.iter().any(|run| run.run_id == scope.run_id && run.epoch == scope.epoch);
            if let Err(error) = self.remind(scope, lease, holds).await {
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
                // Its next append finds out.
                Err(error) => tracing::warn!(run_id = %run.run_id, error = %error, "held run can't be looked up"),
            }
        }
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
        let Some(detail) = self.0.store.detail(&held.run_id).await? else { return Ok(false) };
        if detail.run.status.is_terminal() || detail.run.status == RunStatus::Pending {
            // It has ended, and perhaps waits to be resumed: its last batch is acknowledged or fenced when it comes again.
            return Ok(true);
        }
        if !self.has_lease(writer, &detail.run.session_id, held.epoch).await? {
            return Ok(false);
        }
        let lease = lease_of(writer, held.epoch);
        let scope = Arc::new(RunScope::new(&detail.run, detail.agent, held.epoch));
        self.board().adopt(scope.clone(), lease.clone());
        self.arm_deadline(&scope);
        self.repeat_cancel(&scope.run_id, &lease).await?;
        Ok(true)
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

    /// A connection has ended. `gone` when its worker said that it goes, or was silent for too long: then nobody waits
    /// for it to come back.
    pub fn disconnected(&self, writer: Writer, link: u64, gone: bool) {
        if !self.board().disconnected(&writer.worker_id, link) {
            return;
        }
        tracing::info!(worker_id = %writer.worker_id, gone, "worker disconnected");
        let service = self.clone();
        self.spawn(async move {
            if !gone {
                tokio::select! {
                    () = tokio::time::sleep(service.0.limits.reconnect_grace) => {}
                    () = service.0.stopping.cancelled() => return,
                }
            }
            service.lost_if_away(&writer).await;
        });
    }

    /// The worker takes no further run.
    pub fn drain(&self, worker_id: &WorkerId) {
        self.board().draining(worker_id);
    }

    async fn lost_if_away(&self, writer: &Writer) {
        let orphans = {
            let mut board = self.board();
            if !board.is_away(writer) {
                return;
            }
            board.remove(&writer.worker_id)
        };
        self.lost(&writer.worker_id, orphans).await;
    }

    /// The maker of workers says that one has ended.
    pub(crate) async fn worker_ended(&self, worker_id: &WorkerId) {
        let orphans = self.board().remove(worker_id);
        self.lost(worker_id, orphans).await;
    }

    async fn lost(&self, worker_id: &WorkerId, orphans: Vec<Orphan>) {
        tracing::info!(worker_id = %worker_id, sessions = orphans.len(), "worker lost");
        self.0.placement.lost(worker_id);
        self.forget_isolation(worker_id.as_str());
        self.adopt_orphans(orphans).await;
        // Runs that were about to start with it ask again.
        let wanted = self.board().wanted();
        for waiting in wanted {
            self.place_soon(waiting);
        }
    }

    /// Frees the sessions of a lost process and has their runs placed again.
    async fn adopt_orphans(&self, orphans: Vec<Orphan>) {
        for Orphan { session_id, lease, waiting } in orphans {
            self.release_lease(&session_id, &lease).await;
            if let Some(waiting) = waiting {
                self.0.metrics.replaced();
                self.place_soon(waiting);
            }
        }
    }
}

fn lease_of(writer: &Writer, epoch: Epoch) -> Lease {
    Lease { worker_id: writer.worker_id.clone(), registration: writer.registration.clone(), epoch }
}
