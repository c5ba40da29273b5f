//! Random interleavings against a model of one session's line.

use std::sync::Arc;

use cadre_protocol::ids::{Epoch, RunId};
use cadre_protocol::run::RunStatus;
use cadre_store::Store;
use cadre_store::rows::{AppendOutcome, CancelOutcome, Lease, RunFilter};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::Database;
use super::fixtures::*;

const SESSIONS: usize = 3;
const CASES: u32 = 24;

#[derive(Debug, Clone)]
enum Step {
    Accept,
    Acquire { worker: u8 },
    Release,
    Start { stale: bool },
    Append { entries: u8, again: u8, stale: bool },
    Finish,
    Cancel { back: usize },
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let step = prop_oneof![
        3 => Just(Step::Accept),
        2 => (0_u8..3).prop_map(|worker| Step::Acquire { worker }),
        1 => Just(Step::Release),
        4 => any::<bool>().prop_map(|stale| Step::Start { stale }),
        6 => (1_u8..5, 0_u8..4, prop::bool::weighted(0.2))
            .prop_map(|(entries, again, stale)| Step::Append { entries, again, stale }),
        2 => Just(Step::Finish),
        1 => (0_usize..3).prop_map(|back| Step::Cancel { back }),
    ];
    (0..SESSIONS, step)
}

struct Run {
    id: RunId,
    status: RunStatus,
    epoch: Epoch,
    next_index: u64,
}

#[derive(Default)]
struct Line {
    session: String,
    runs: Vec<Run>,
    epoch: u64,
    current: Option<Lease>,
    old: Option<Lease>,
}

impl Line {
    fn head(&mut self) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| !run.status.is_terminal())
    }

    fn lease(&self, stale: bool) -> Option<Lease> {
        if stale { self.old.clone() } else { self.current.clone() }
    }

    async fn apply(&mut self, store: &dyn Store, step: Step) {
        let session_id = self.session.clone();
        match step {
            Step::Accept => {
                let id = accept(store, &session_id).await;
                self.runs.push(Run { id, status: RunStatus::Pending, epoch: Epoch(0), next_index: 0 });
            }
            Step::Acquire { worker } => {
                let lease = lease(store, &session_id, &worker.to_string()).await;
                let has_it = self.current.as_ref().is_some_and(|current| current.registration == lease.registration);
                self.epoch += u64::from(!has_it);
                assert_eq!(lease.epoch.0, self.epoch);
                if !has_it {
                    self.old = self.current.replace(lease).or(self.old.take());
                }
            }
            Step::Release => {
                if let Some(lease) = self.current.take() {
                    store.release(&session(&session_id), &lease).await.unwrap();
                    self.old = Some(lease);
                }
            }
            Step::Start { stale } => self.start(store, stale).await,
            Step::Append { entries, again, stale } => self.append(store, entries, again, stale).await,
            Step::Finish => self.finish(store).await,
            Step::Cancel { back } => self.cancel(store, back).await,
        }
    }

    async fn start(&mut self, store: &dyn Store, stale: bool) {
        let Some(lease) = self.lease(stale) else { return };
        let is_current = self.current.as_ref() == Some(&lease);
        let Some(head) = self.head() else { return };
        let started = store.start(&head.id, &lease, now()).await.unwrap();
        assert_eq!(started.is_some(), is_current);
        if let Some(started) = started {
            assert_eq!(started.progress.next_index, head.next_index);
            (head.status, head.epoch) = (RunStatus::Running, lease.epoch);
        }
    }

    async fn append(&mut self, store: &dyn Store, entries: u8, again: u8, stale: bool) {
        let (Some(lease), newest, session_id) = (self.lease(stale), self.epoch, self.session.clone()) else { return };
        let Some(head) = self.head() else { return };
        let first = head.next_index.saturating_sub(u64::from(again));
        let is_writer = head.epoch == lease.epoch && lease.epoch.0 == newest;
        let batch = (0..entries).map(|_| text("x")).collect();
        let outcome = append(store, &session_id, &head.id, lease.epoch, first, batch).await;
        if !is_writer {
            assert_eq!(outcome, AppendOutcome::Fenced);
            return;
        }
        head.next_index = head.next_index.max(first + u64::from(entries));
        assert_eq!(appended(outcome).0, head.next_index);
    }

    async fn finish(&mut self, store: &dyn Store) {
        let (newest, session_id) = (self.epoch, self.session.clone());
        let Some(head) = self.head() else { return };
        if head.status != RunStatus::Running || head.epoch.0 != newest {
            return;
        }
        let ended = complete(store, &session_id, &head.id, head.epoch, head.next_index).await;
        (head.status, head.next_index) = (RunStatus::Completed, head.next_index + 3);
        assert_eq!(ended.next, self.head().map(|head| head.id.clone()));
    }

    async fn cancel(&mut self, store: &dyn Store, back: usize) {
        let Some(run) = self.runs.iter_mut().rev().nth(back) else { return };
        match store.cancel(&run.id, None, "because", now()).await.unwrap() {
            CancelOutcome::Ended { .. } => {
                assert_eq!(run.status, RunStatus::Pending);
                (run.status, run.next_index) = (RunStatus::Cancelled, run.next_index + 1);
            }
            CancelOutcome::Requested { .. } => assert_eq!(run.status, RunStatus::Running),
            CancelOutcome::AlreadyEnded(status) => assert_eq!(run.status, status),
            CancelOutcome::NotFound => panic!("a run is lost"),
        }
    }

    /// What is stored is what was acknowledged: no more, no less, in order.
    async fn check(&self, store: &dyn Store) {
        let filter = RunFilter { session_id: Some(session(&self.session)), limit: 1_000, ..RunFilter::default() };
        let mut stored = store.list(filter).await.unwrap().0;
        stored.sort_by_key(|row| row.created_at_ms);
        let stored: Vec<_> = stored.iter().map(|row| (&row.run_id, row.status, row.next_index)).collect();
        let expected: Vec<_> = self.runs.iter().map(|run| (&run.id, run.status, run.next_index)).collect();
        assert_eq!(stored, expected);
        assert!(stored.iter().filter(|(_, status, _)| *status == RunStatus::Running).count() <= 1);
        for run in &self.runs {
            let mut next = 0_u64;
            while let Some(chunk) = store.events(&run.id, next.checked_sub(1), usize::MAX).await.unwrap() {
                assert_eq!(chunk.first_index, next, "no gap");
                next = chunk.next_index;
            }
            assert_eq!(next, run.next_index);
        }
    }
}

pub async fn invariants_hold(database: &impl Database) {
    let steps = prop::collection::vec(step(), 1..60);
    let mut case = 0;
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let cell = std::cell::RefCell::new(&mut case);
    let result = tokio::task::block_in_place(|| {
        runner.run(&steps, |steps| {
            let number = {
                let mut case = cell.borrow_mut();
                **case += 1;
                **case
            };
            tokio::runtime::Handle::current().block_on(interleave(database, number, steps));
            Ok(())
        })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

async fn interleave(database: &impl Database, case: u32, steps: Vec<(usize, Step)>) {
    let mut store: Arc<dyn Store> = database.open();
    let mut lines: Vec<Line> =
        (0..SESSIONS).map(|n| Line { session: format!("{case}-{n}"), ..Line::default() }).collect();
    for (which, step) in steps {
        lines[which].apply(&*store, step).await;
    }
    for line in &lines {
        line.check(&*store).await;
    }
    drop(store);
    store = database.open();
    for line in &lines {
        line.check(&*store).await;
    }
}
