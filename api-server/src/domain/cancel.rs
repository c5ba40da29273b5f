//! Cancel: at once where nothing runs, by the worker where something does, by the server if the worker does not obey.

use cadre_protocol::ids::{Epoch, RunId, SessionId};
use cadre_protocol::worker::ServerFrame;
use cadre_store::rows::{CancelOutcome, Principal, RunRow};

use super::place::cancelled;
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
                self.0.hub.end(run_id);
                self.trace(run_id);
                let run = self.run(run_id, principal).await?;
                self.0.metrics.ended(run.status);
                self.release_seat(&run.session_id, run_id, true);
                self.tell_change(&run);
                if let Some(next) = next {
                    self.place_next(next);
                }
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
            tracing::info!(run_id = %run_id, session_id = %session_id, "cancelled run has no worker: ended here");
            self.end_run(run_id, cancelled(REASON)).await;
            return;
        };
        let service = self.clone();
        self.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(service.0.limits.obey_grace) => {
                    service.end_run(&scope.run_id, cancelled(REASON)).await;
                }
                () = scope.over.cancelled() => {}
                () = service.0.stopping.cancelled() => {}
            }
        });
    }
}
