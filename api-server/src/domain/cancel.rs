//! Cancel: at once where nothing runs, by the worker where something does, by the server if the worker does not obey.

use cadre_protocol::ids::{Epoch, RunId, SessionId};
use cadre_protocol::worker::ServerFrame;
use cadre_store::rows::{CancelOutcome, Change, Principal, RunRow};
use tokio_util::sync::CancellationToken;

use super::place::cancelled;
use super::service::Inner;
use super::{DomainError, Service};

/// What workers and clients read as the reason.
const REASON: &str = "cancelled by the caller";

impl Service {
    /// Asks for a cancel. Answers the run as it is after that: CANCELLED, or still running until its worker obeys.
    /// Cancelling an ended run changes nothing.
    ///
    /// # Errors
    /// [`DomainError::RunNotFound`].
    pub async fn cancel(&self, run_id: &RunId, principal: Option<&Principal>) -> Result<RunRow, DomainError> {
        match self.0.store.cancel(run_id, principal, REASON, self.now_ms()).await? {
            CancelOutcome::Ended { chunk, next } => {
                if let Some(chunk) = chunk {
                    self.0.hub.publish(run_id, chunk);
                }
                self.0.hub.end(run_id, None, None);
                self.trace(run_id);
                let run = self.run(run_id, principal).await?;
                self.0.metrics.ended(run.status);
                self.release_seat(&run.session_id, run_id, true);
                self.tell_change(&run);
                if let Some(next) = next {
                    self.place_next(next);
                }
                self.grant_soon(&run.component, None);
                Ok(run)
            }
            CancelOutcome::Requested { session_id, epoch } => {
                self.cancel_running(run_id, &session_id, epoch).await;
                self.run(run_id, principal).await
            }
            CancelOutcome::AlreadyEnded(_) => self.run(run_id, principal).await,
            CancelOutcome::NotFound => Err(DomainError::RunNotFound(run_id.to_string())),
        }
    }

    async fn cancel_running(&self, run_id: &RunId, session_id: &SessionId, epoch: Epoch) {
        let frame = ServerFrame::Cancel { run_id: run_id.clone(), epoch, reason: REASON.to_owned() };
        let told = {
            let board = self.board();
            board.running(run_id).filter(|(_, lease)| board.send(lease, frame)).map(|(scope, _)| scope)
        };
        let Some(scope) = told else {
            if self.is_elsewhere(session_id).await {
                self.0.store.tell(Change::Cancel(run_id.clone()));
                self.end_unless_obeyed(run_id, epoch, CancellationToken::new());
                return;
            }
            tracing::info!(run_id = %run_id, session_id = %session_id, "cancelled run has no worker: ended here");
            self.end_run(run_id, cancelled(REASON), Some(epoch)).await;
            return;
        };
        if scope.is_cancelled_first() {
            self.end_unless_obeyed(run_id, scope.epoch, scope.over.clone());
        }
    }

    /// Another replica has been asked for the cancel of a run; if its worker is here, it is told.
    pub(crate) fn cancel_here(&self, run_id: &RunId) {
        let running = self.board().running(run_id);
        if let Some((scope, lease)) = running
            && scope.is_cancelled_first()
        {
            let (of, reason) = (run_id.clone(), REASON.to_owned());
            // A worker that is away is told when it is back.
            self.board().send(&lease, ServerFrame::Cancel { run_id: of, epoch: lease.epoch, reason });
            self.end_unless_obeyed(run_id, scope.epoch, scope.over.clone());
        }
    }

    /// Ends a run that is still there, as it was, after the time that its worker has to obey.
    fn end_unless_obeyed(&self, run_id: &RunId, epoch: Epoch, over: CancellationToken) {
        let (service, run_id) = (self.clone(), run_id.clone());
        self.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(service.0.limits.obey_grace) => {
                    service.end_run(&run_id, cancelled(REASON), Some(epoch)).await;
                }
                () = over.cancelled() => {}
                () = service.0.stopping.cancelled() => {}
            }
        });
    }

    /// Whether another live replica has the session's worker. Unknown means that it may.
    async fn is_elsewhere(&self, session_id: &SessionId) -> bool {
        let Inner { store, replica, limits, shared, .. } = &*self.0;
        *shared && store.is_elsewhere(session_id, replica, limits.return_time).await.unwrap_or(true)
    }
}
