//! Appends: what a worker writes about its run becomes durable, then visible.

use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::event::EventContext;
use cadre_protocol::ids::{BlobDigest, Epoch, RunId};
use cadre_protocol::journal::Batch;
use cadre_protocol::run::{RunEnd, RunFailure, RunStatus};
use cadre_protocol::worker::HeldRun;
use cadre_store::StoreError;
use cadre_store::rows::{AppendOutcome, BlobKey, BlobRange, ModelCallRow};

use super::hub::Wants;
use super::scope::{RunScope, Writer, context};
use super::{DomainError, Service};

/// Longest pause between tries while the database does not answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A run of a late batch.
enum Late {
    /// Not this writer's.
    Foreign,
    /// It goes on: now on the board.
    Adopted,
    /// It has ended.
    Ended(EventContext),
}

/// What came of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Appended {
    /// Durable.
    Ack {
        /// First number that is not.
        next_index: u64,
        /// Whether it ended the run.
        ended: bool,
    },
    /// The writer has lost the right.
    Fenced,
    /// A rule was broken; the run has been ended.
    Refused(String),
    /// The server stops before the database has answered: the writer keeps the batch and sends it to the next server.
    Unanswered,
}

impl Service {
    /// The run that a process executes under an epoch. None: it has no right to it.
    #[must_use]
    pub fn scope(&self, writer: &Writer, run_id: &RunId, epoch: Epoch) -> Option<Arc<RunScope>> {
        self.board().scope(writer, run_id, epoch)
    }

    /// Who listens to a run here.
    #[must_use]
    pub fn audience(&self, run_id: &RunId) -> Option<Wants> {
        self.0.hub.audience(run_id)
    }

    /// Appends a batch. While the database is away this waits.
    pub async fn append(&self, writer: &Writer, batch: Batch) -> Appended {
        let (run_id, epoch) = (batch.run_id.clone(), batch.epoch);
        let Some(scope) = self.scope(writer, &run_id, epoch) else {
            return self.append_late(writer, batch).await;
        };
        match self.patiently(|| self.0.store.append(&scope.context, &batch)).await {
            Ok(AppendOutcome::Appended { next_index, chunk, ended }) => {
                if let Some(chunk) = chunk {
                    self.0.hub.publish(&run_id, chunk);
                }
                scope.seen.note(batch, next_index);
                let is_end = ended.is_some();
                if let Some(ended) = ended {
                    self.finished(&scope, next_index, ended);
                }
                Appended::Ack { next_index, ended: is_end }
            }
            Ok(AppendOutcome::Fenced) => {
                self.release_seat(&scope.session_id, &run_id, false);
                self.place_waiting_in(&scope.session_id);
                Appended::Fenced
            }
            Ok(AppendOutcome::Gap { next_index }) => {
                self.refuse(&run_id, format!("entries are missing from number {next_index} on")).await
            }
            Ok(AppendOutcome::LimitExceeded(limit)) => self.refuse(&run_id, limit.to_owned()).await,
            Err(StoreError::Unavailable(_) | StoreError::Closed) => Appended::Unanswered,
            Err(error) => self.refuse(&run_id, broken(&run_id, &error)).await,
        }
    }

    /// A batch of a run that is not on the board: it ended and the acknowledgement was lost, this server has not yet
    /// looked it up, or it is an intruder's.
    async fn append_late(&self, writer: &Writer, batch: Batch) -> Appended {
        loop {
            match self.look_up(writer, &batch).await {
                Ok(Late::Foreign) => return Appended::Fenced,
                Ok(Late::Adopted) => return Box::pin(self.append(writer, batch)).await,
                Ok(Late::Ended(context)) => {
                    return match self.patiently(|| self.0.store.append(&context, &batch)).await {
                        Ok(AppendOutcome::Appended { next_index, .. }) => Appended::Ack { next_index, ended: true },
                        Err(StoreError::Unavailable(_) | StoreError::Closed) => Appended::Unanswered,
                        _ => Appended::Fenced,
                    };
                }
                Err(DomainError::Store(StoreError::Unavailable(_))) if !self.0.stopping.is_cancelled() => {
                    tokio::time::sleep(LONGEST_PAUSE).await;
                }
                Err(DomainError::Store(StoreError::Unavailable(_) | StoreError::Closed)) => {
                    return Appended::Unanswered;
                }
                Err(error) => {
                    tracing::warn!(run_id = %batch.run_id, error = %error, "a late batch can't be looked up");
                    return Appended::Fenced;
                }
            }
        }
    }

    async fn look_up(&self, writer: &Writer, batch: &Batch) -> Result<Late, DomainError> {
        let held = HeldRun { run_id: batch.run_id.clone(), epoch: batch.epoch };
        let Some(detail) = self.0.store.detail(&batch.run_id, None).await? else { return Ok(Late::Foreign) };
        if !self.has_lease(writer, &detail.run.session_id, batch.epoch).await? {
            return Ok(Late::Foreign);
        }
        // One that waits has ended or paused before and is to go on: its last batch may come once more.
        if detail.run.status != RunStatus::Running {
            return Ok(Late::Ended(context(&detail.run, &detail.agent)));
        }
        Ok(if self.adopt(writer, &held).await? { Late::Adopted } else { Late::Foreign })
    }

    /// Ends a run whose worker broke a rule.
    pub async fn refuse(&self, run_id: &RunId, reason: String) -> Appended {
        let failure = RunFailure {
            error_type: "limit_exceeded".into(),
            error_id: None,
            message: reason.clone(),
            retryable: false,
        };
        let epoch = self.board().running(run_id).map(|(scope, _)| scope.epoch);
        self.end_run(run_id, RunEnd::Error(failure), epoch).await;
        Appended::Refused(reason)
    }

    /// Records a measured model call of a run.
    ///
    /// # Errors
    /// The record's.
    pub async fn record_model_call(&self, call: ModelCallRow) -> Result<(), DomainError> {
        Ok(self.patiently(|| self.0.store.model_call(call.clone())).await?)
    }

    /// A piece of a file that came with a run of the session: a new workspace needs those of earlier ones too. None: the
    /// session has no such file. Files are never shared between sessions, so the session is all that has to be looked at.
    ///
    /// # Errors
    /// The record's.
    pub async fn session_file(
        &self,
        scope: &RunScope,
        digest: &BlobDigest,
        offset: u64,
        max_bytes: usize,
    ) -> Result<Option<BlobRange>, DomainError> {
        let key = BlobKey { session_id: scope.session_id.clone(), digest: digest.clone() };
        Ok(self.patiently(|| self.0.store.get(&key, offset, max_bytes)).await?)
    }
}

fn broken(run_id: &RunId, error: &StoreError) -> String {
    tracing::error!(run_id = %run_id, category = error.category(), error = %error, "a batch can't be stored");
    "the record refused what the run wrote".to_owned()
}
