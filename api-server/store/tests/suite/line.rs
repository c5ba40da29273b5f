//! The line of a session, and cancels.

use cadre_protocol::run::RunStatus;
use cadre_store::rows::{CancelOutcome, Principal, RunFilter};

use super::Database;
use super::fixtures::*;

pub async fn a_hundred_accepts_at_once_are_a_line(database: &impl Database) {
    let store = database.open();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let store = store.clone();
        tasks.spawn(async move {
            let (row, waiting_on, _) = accepted(&*store, new_run("s")).await;
            (row.run_id, waiting_on)
        });
    }
    let mut before: std::collections::HashMap<_, _> =
        tasks.join_all().await.into_iter().map(|(run_id, waiting_on)| (waiting_on, run_id)).collect();
    assert_eq!(before.len(), 100, "no two wait for the same run");
    let lease = lease(&*store, "s", "w").await;
    let mut head = before.remove(&None);
    let mut ended = 0;
    while let Some(run_id) = head {
        assert!(store.start(&run_id, &lease, now()).await.unwrap().is_some());
        let next = complete(&*store, "s", &run_id, lease.epoch, 0).await.next;
        assert_eq!(next, before.remove(&Some(run_id)));
        (head, ended) = (next, ended + 1);
    }
    assert_eq!(ended, 100);
}

pub async fn only_the_head_starts(database: &impl Database) {
    let store = database.open();
    let (first, second) = (accept(&*store, "s").await, accept(&*store, "s").await);
    let lease = lease(&*store, "s", "w").await;
    assert!(store.start(&second, &lease, now()).await.unwrap().is_none());
    assert_eq!(store.waiting_on(&second).await.unwrap(), Some(first.clone()));
    assert!(store.start(&first, &lease, now()).await.unwrap().is_some());
    assert!(store.start(&second, &lease, now()).await.unwrap().is_none());
    assert_eq!(store.waiting_on(&first).await.unwrap(), None);
    complete(&*store, "s", &first, lease.epoch, 0).await;
    assert!(store.start(&first, &lease, now()).await.unwrap().is_none(), "it has ended");
    assert!(store.start(&second, &lease, now()).await.unwrap().is_some());
}

pub async fn the_end_of_a_run_names_the_next(database: &impl Database) {
    let store = database.open();
    let (first, lease) = running(&*store, "s").await;
    let second = accept(&*store, "s").await;
    let ended = complete(&*store, "s", &first, lease.epoch, 0).await;
    assert_eq!((ended.status, ended.next), (RunStatus::Completed, Some(second.clone())));
    assert!(store.start(&second, &lease, now()).await.unwrap().is_some());
    assert_eq!(complete(&*store, "s", &second, lease.epoch, 0).await.next, None);
}

pub async fn a_cancel_ends_a_waiting_run_with_an_event(database: &impl Database) {
    let store = database.open();
    let run_id = accept(&*store, "s").await;
    let outcome = store.cancel(&run_id, Some(&principal()), "not needed", now()).await.unwrap();
    let CancelOutcome::Ended { chunk: Some(chunk), next: None } = outcome else { panic!("{outcome:?}") };
    assert_eq!((chunk.first_index, chunk.next_index), (0, 1));
    assert!(chunk.frames.starts_with("id: 0\nevent: RunCancelled\n") && chunk.frames.contains("not needed"));
    assert_eq!(frames(&*store, &run_id).await, &*chunk.frames);
    let row = store.run(&run_id).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.cancellation_stage.as_deref(), row.next_index),
        (RunStatus::Cancelled, Some("PENDING"), 1)
    );
    let again = store.cancel(&run_id, None, "", now()).await.unwrap();
    assert_eq!(again, CancelOutcome::AlreadyEnded(RunStatus::Cancelled));
}

pub async fn a_cancel_asks_a_running_run(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let requested = CancelOutcome::Requested { session_id: session("s"), epoch: lease.epoch };
    assert_eq!(store.cancel(&run_id, None, "stop", now()).await.unwrap(), requested);
    assert_eq!(store.cancel(&run_id, None, "stop", now()).await.unwrap(), requested);
    let row = store.run(&run_id).await.unwrap().unwrap();
    assert_eq!((row.status, row.cancel_requested), (RunStatus::Running, true));
    assert_eq!(row.cancellation_stage.as_deref(), Some("EXECUTING"));
}

pub async fn a_cancel_is_limited_to_the_owner(database: &impl Database) {
    let store = database.open();
    let run_id = accept(&*store, "s").await;
    let other = Principal("key:other".into());
    assert_eq!(store.cancel(&run_id, Some(&other), "", now()).await.unwrap(), CancelOutcome::NotFound);
    let unknown = cadre_protocol::ids::RunId::generate();
    assert_eq!(store.cancel(&unknown, None, "", now()).await.unwrap(), CancelOutcome::NotFound);
    assert_eq!(store.run(&run_id).await.unwrap().unwrap().status, RunStatus::Pending);
}

pub async fn a_cancelled_head_names_the_next_and_others_do_not(database: &impl Database) {
    let store = database.open();
    let runs = [accept(&*store, "s").await, accept(&*store, "s").await, accept(&*store, "s").await];
    let next = |outcome: CancelOutcome| match outcome {
        CancelOutcome::Ended { next, .. } => next,
        other => panic!("{other:?}"),
    };
    assert_eq!(next(store.cancel(&runs[1], None, "", now()).await.unwrap()), None);
    assert_eq!(next(store.cancel(&runs[0], None, "", now()).await.unwrap()), Some(runs[2].clone()));
    let filter = RunFilter { status: Some(RunStatus::Pending), limit: 10, ..RunFilter::default() };
    assert_eq!(store.list(filter).await.unwrap().1, 1);
}
