//! This replica among others: its sign of life, and what the others tell.

use std::time::Duration;

use cadre_protocol::ids::RunId;
use cadre_store::rows::Change;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::Service;
use super::service;

/// Since when this replica has been in touch with the record. Who was out of touch can't tell who else is dead.
#[derive(Debug, Default)]
pub struct Contact {
    since: Option<Instant>,
    last: Option<Instant>,
}

impl Contact {
    /// The record has answered at `now`. A gap longer than `longest_gap` begins it anew; answers whether it has.
    fn seen(&mut self, now: Instant, longest_gap: Duration) -> bool {
        let begins = self.last.is_none_or(|last| now.duration_since(last) > longest_gap);
        if begins {
            self.since = Some(now);
        }
        self.last = Some(now);
        begins
    }

    /// How long it has lasted at `now`.
    fn lasts(&self, now: Instant) -> Option<Duration> {
        Some(now.duration_since(self.since?))
    }
}

impl Service {
    /// Tells the record that this replica lives. Where there is no other replica, once is enough.
    pub(crate) async fn show_life(self) {
        let longest_gap = self.0.limits.return_time / 2;
        loop {
            match self.0.store.beat(&self.0.replica).await {
                Ok(()) => {
                    if self.contact().seen(Instant::now(), longest_gap) {
                        // Others may have taken this replica for dead, and its workers for lost.
                        self.register_again().await;
                        self.0.sweep_now.notify_one();
                    }
                    if !self.0.shared {
                        return;
                    }
                }
                Err(error) => tracing::warn!(category = error.category(), "the record can't be told of this replica"),
            }
            tokio::select! {
                () = tokio::time::sleep(self.0.limits.beat_every) => {}
                () = self.0.stopping.cancelled() => return,
            }
        }
    }

    fn contact(&self) -> std::sync::MutexGuard<'_, Contact> {
        self.0.contact.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The silence after which a replica counts as dead; none while this one has not been in touch for as long itself,
    /// because workers of a replica that ended before may still be about to dial in.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let silence = if self.0.placement.workers_survive() { self.0.limits.return_time } else { Duration::ZERO };
        self.contact().lasts(Instant::now()).filter(|lasts| *lasts >= silence).map(|_| silence)
    }

    /// Acts on what other replicas tell.
    pub(crate) async fn watch_record(self) {
        let Some(mut changes) = self.0.store.changes() else { return };
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = self.0.stopping.cancelled() => return,
            };
            match change {
                Ok(Change::Run(run_id)) => {
                    self.0.hub.wake(&run_id);
                    if self.board().running(&run_id).is_some() {
                        self.in_background(run_id, |service, run_id| async move {
                            service.leave_if_over(&run_id).await;
                        });
                    }
                }
                Ok(Change::Waiting(run_id)) => {
                    self.in_background(run_id, |service, run_id| async move { service.place_if_here(&run_id).await });
                }
                Ok(Change::Cancel(run_id)) => self.cancel_here(&run_id),
                Ok(Change::Status(run_id)) => {
                    // Nobody may be listening.
                    let _ = self.0.changes.send(service::Change::Run(run_id));
                    let _ = self.0.changes.send(service::Change::Load);
                }
                Ok(Change::Worker(worker_id)) => {
                    let service = self.clone();
                    self.spawn(async move { service.moved(&worker_id).await });
                }
                Ok(Change::Missed) | Err(RecvError::Lagged(_)) => {
                    self.0.hub.wake_all();
                    self.0.sweep_now.notify_one();
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn in_background<F: Future<Output = ()> + Send + 'static>(
        &self,
        run_id: RunId,
        task: impl FnOnce(Self, RunId) -> F,
    ) {
        self.spawn(task(self.clone(), run_id));
    }

    /// Takes a run from its worker here if another replica has ended it or given it to another worker.
    pub(crate) async fn leave_if_over(&self, run_id: &RunId) {
        let Some((scope, lease)) = self.board().running(run_id) else { return };
        let (run, current) = match tokio::join!(self.0.store.run(run_id), self.0.store.lease(&scope.session_id)) {
            (Ok(run), Ok(current)) => (run, current),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(run_id = %run_id, category = error.category(), "run can't be looked up now");
                return;
            }
        };
        let ended = run.is_none_or(|run| run.status.is_terminal());
        if ended || current.as_ref() != Some(&lease) {
            self.0.hub.wake(run_id);
            self.leave_worker(run_id).await;
            self.place_waiting_in(&scope.session_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_begins_a_contact_anew() {
        let (start, gap) = (Instant::now(), Duration::from_secs(7));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut contact = Contact::default();
        assert_eq!(contact.lasts(at(0)), None);
        assert!(contact.seen(at(0), gap));
        assert!(!contact.seen(at(6), gap));
        assert_eq!(contact.lasts(at(6)), Some(Duration::from_secs(6)));
        assert!(contact.seen(at(20), gap));
        assert_eq!(contact.lasts(at(21)), Some(Duration::from_secs(1)));
    }
}
