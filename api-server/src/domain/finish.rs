//! The end of runs: by their worker, by the server, by the clock; and what the end sets free.

use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId};
use cadre_protocol::run::{RunEnd, RunFailure, RunStatus};
use cadre_protocol::worker::ServerFrame;
use cadre_store::rows::{EndedRun, EventChunk, Origin, RunRow, ServerEnd};

use super::Service;
use super::scope::RunScope;
use super::seat::Retired;
use super::service::{Change, Inner, now_ms};
use crate::placement::PlacementError;

/// What the engine gets to notice a deadline by itself.
const DEADLINE_GRACE: Duration = Duration::from_secs(2);
/// Time between two tries to end a run while the database is away.
const END_AGAIN: Duration = Duration::from_secs(1);

impl Service {
    /// A worker has ended its run, or waits for a person: the record says so already.
    pub(crate) fn finished(&self, scope: &RunScope, next_index: u64, ended: EndedRun) {
        let idle = self.board().vacate(&scope.session_id, &scope.run_id, true);
        if ended.status == RunStatus::Paused {
            // It may go on already: readers ask the record whether there is more to come.
            self.0.hub.wake(&scope.run_id);
        } else {
            self.0.metrics.ended(ended.status);
            // A cancel that has met a pause has an event of the server's own.
            let next_index = (ended.status != RunStatus::Cancelled).then_some(next_index);
            self.0.hub.end(&scope.run_id, next_index, scope.seen.detail(scope, &ended));
            self.trace(&scope.run_id);
        }
        self.tell(scope.of_object.then_some(&scope.run_id));
        // Also when there is a next run: it may end before it begins, and a timer that is late does nothing.
        if let Some(idle) = idle {
            let warm = Duration::from_secs(u64::from(scope.agent.warm_seconds));
            let _ = self.0.idle.send((warm, idle));
        }
        if let Some(next) = ended.next {
            self.place_next(next);
        }
        self.grant_soon(&scope.component, Some(&scope.agent));
    }

    /// Ends a run by the server's decision. Its worker, if it has one, is fenced. With an epoch the run ends only while it
    /// executes under it, and that is tried until the record answers; without, whoever decided looks again.
    pub(crate) async fn end_run(&self, run_id: &RunId, end: RunEnd, epoch: Option<Epoch>) {
        let end = ServerEnd { run_id: run_id.clone(), end, epoch, at_ms: self.now_ms() };
        if !self.try_end(end.clone()).await && epoch.is_some() {
            let service = self.clone();
            self.spawn(async move { service.end_when_there(end).await });
        }
    }

    /// Ends a run when the record answers again.
    async fn end_when_there(&self, end: ServerEnd) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(END_AGAIN) => {}
                () = self.0.stopping.cancelled() => return,
            }
            if self.try_end(ServerEnd { at_ms: self.now_ms(), ..end.clone() }).await {
                return;
            }
        }
    }

    /// False when the record does not answer.
    async fn try_end(&self, end: ServerEnd) -> bool {
        let run_id = end.run_id.clone();
        match self.0.store.end(end).await {
            Ok(Some((ended, chunk))) => self.ended(&run_id, ended, chunk).await,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(run_id = %run_id, category = error.category(), "run can't be ended now");
                return false;
            }
        }
        true
    }

    async fn ended(&self, run_id: &RunId, ended: EndedRun, chunk: Option<EventChunk>) {
        self.0.metrics.ended(ended.status);
        if let Some(chunk) = chunk {
            self.0.hub.publish(run_id, chunk);
        }
        self.0.hub.end(run_id, None, None);
        self.trace(run_id);
        self.leave_worker(run_id).await;
        self.tell_run(run_id).await;
        if let Some(next) = ended.next {
            self.place_next(next);
        }
        if let Ok(Some(run)) = self.0.store.run(run_id).await {
            self.grant_soon(&run.component, None);
        }
    }

    /// Takes an ended run from the board; its epoch is spent.
    pub(crate) async fn leave_worker(&self, run_id: &RunId) {
        let running = self.board().running(run_id);
        if let Some((scope, lease)) = running {
            let fenced = ServerFrame::Fenced { run_id: run_id.clone(), epoch: scope.epoch };
            self.board().send(&lease, fenced);
            self.release_seat(&scope.session_id, run_id, false);
        } else if let Ok(Some(run)) = self.0.store.run(run_id).await {
            self.release_seat(&run.session_id, run_id, false);
        }
    }

    /// Ends a run when its time is over, unless it ends before.
    pub(crate) fn arm_deadline(&self, scope: &Arc<RunScope>) {
        let Some(deadline_ms) = scope.deadline_ms else { return };
        let (service, scope) = (self.clone(), scope.clone());
        self.spawn(async move {
            let left = Duration::from_millis(deadline_ms.saturating_sub(now_ms())) + DEADLINE_GRACE;
            tokio::select! {
                () = tokio::time::sleep(left) => {
                    service.end_run(&scope.run_id, timed_out(), Some(scope.epoch)).await;
                }
                () = scope.over.cancelled() => {}
                () = service.0.stopping.cancelled() => {}
            }
        });
    }

    pub(crate) fn place_next(&self, next: RunId) {
        let service = self.clone();
        self.spawn(async move { service.place_run(&next).await });
    }

    /// Tells listeners that a run has changed.
    pub(crate) fn tell_change(&self, run: &RunRow) {
        self.tell(matches!(run.origin, Origin::RunObject { .. }).then_some(&run.run_id));
    }

    pub(crate) async fn tell_run(&self, run_id: &RunId) {
        match self.0.store.run(run_id).await {
            Ok(Some(run)) => self.tell_change(&run),
            Ok(None) | Err(_) => self.tell(None),
        }
    }

    pub(crate) fn tell(&self, of_object: Option<&RunId>) {
        // Nobody may be listening.
        if let Some(run_id) = of_object {
            self.0.store.tell(cadre_store::rows::Change::Status(run_id.clone()));
            let _ = self.0.changes.send(Change::Run(run_id.clone()));
        }
        let _ = self.0.changes.send(Change::Load);
    }

    /// The session's worker is not needed any more. The record knows best: a run may just have been accepted, and the
    /// worker may be another replica's.
    pub(crate) async fn retire(&self, session_id: &SessionId, idle: &super::seat::IdleSeat) {
        let retired = self.board().retire(idle);
        let Some(retired) = retired else { return };
        let Inner { store, placement, replica, limits, .. } = &*self.0;
        match store.retire(session_id, replica, limits.return_time).await {
            Ok(true) => {}
            Ok(false) => return self.keep(session_id, retired),
            Err(error) => {
                tracing::warn!(session_id = %session_id, category = error.category(), "worker can't be retired now");
                return self.keep(session_id, retired);
            }
        }
        if let Err(error) = placement.retire(session_id, &retired.component).await {
            tracing::warn!(session_id = %session_id, error = %error, "worker can't be retired now");
            return self.keep(session_id, retired);
        }
        self.place_is_free();
    }

    /// An idle session is about to be forgotten: its worker gets no further run, and is removed with its files.
    pub(crate) async fn remove_worker(
        &self,
        session_id: &SessionId,
        component: &ComponentRef,
    ) -> Result<(), PlacementError> {
        let retired = {
            let mut board = self.board();
            let idle = board.rest(session_id, component);
            idle.and_then(|idle| board.retire(&idle))
        };
        let removed = self.0.placement.remove(session_id, component).await;
        match (&removed, retired) {
            (Ok(()), _) => self.place_is_free(),
            (Err(_), Some(retired)) => self.keep(session_id, retired),
            (Err(_), None) => {}
        }
        removed
    }

    /// A worker that was to be retired stays for a while, and takes what has come meanwhile.
    fn keep(&self, session_id: &SessionId, retired: Retired) {
        let idle = self.board().unretire(session_id, retired);
        if let Some(idle) = idle {
            let _ = self.0.idle.send((self.0.limits.retire_again, idle));
        }
        self.place_waiting_in(session_id);
    }
}

/// The end of a run that took too long.
pub(crate) fn timed_out() -> RunEnd {
    RunEnd::Error(RunFailure {
        error_type: "timeout".into(),
        error_id: None,
        message: "the run took longer than its time limit".into(),
        retryable: false,
    })
}
