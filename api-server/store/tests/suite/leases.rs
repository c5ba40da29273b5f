//! Leases, the server's own ends, and runs without a worker.

use cadre_protocol::ids::Epoch;
use cadre_protocol::run::{RunEnd, RunFailure, RunStatus};
use cadre_store::branches::ResumeOutcome;
use cadre_store::rows::{AppendOutcome, Lease, ServerEnd};

use super::Database;
use super::fixtures::*;
use super::resumption::resumption;

pub async fn an_epoch_belongs_to_a_registration(database: &impl Database) {
    let store = database.open();
    let id = session("s");
    assert_eq!(store.lease(&id).await.unwrap(), None);
    let first = lease(&*store, "s", "a").await;
    assert_eq!(first.epoch, Epoch(1));
    assert_eq!(lease(&*store, "s", "a").await, first, "the same process again");
    assert_eq!(store.lease(&id).await.unwrap(), Some(first.clone()));
    let restarted = store.acquire(&id, &first.worker_id, "a2", now()).await.unwrap();
    assert_eq!(restarted, Epoch(2), "the same pod with another process");
    let released = Lease { registration: "a2".into(), epoch: restarted, ..first };
    store.release(&id, &released).await.unwrap();
    assert_eq!(
        store.acquire(&id, &released.worker_id, "a2", now()).await.unwrap(),
        Epoch(3),
        "a released one is spent"
    );
}

pub async fn only_the_holder_releases(database: &impl Database) {
    let store = database.open();
    let id = session("s");
    let old = lease(&*store, "s", "a").await;
    let new = lease(&*store, "s", "b").await;
    store.release(&id, &old).await.unwrap();
    assert_eq!(store.lease(&id).await.unwrap(), Some(new.clone()));
    let run_id = accept(&*store, "s").await;
    store.release(&id, &new).await.unwrap();
    assert_eq!(store.lease(&id).await.unwrap(), None);
    assert!(store.start(&run_id, &new, now()).await.unwrap().is_none(), "a released lease starts nothing");
}

fn timeout(run_id: &cadre_protocol::ids::RunId) -> ServerEnd {
    let failure = RunFailure {
        error_type: "timeout".into(),
        error_id: Some("run_timeout".into()),
        message: "took too long".into(),
        retryable: false,
    };
    ServerEnd { run_id: run_id.clone(), end: RunEnd::Error(failure), epoch: None, at_ms: now() }
}

pub async fn the_servers_end_fences_the_worker(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let waits = accept(&*store, "s").await;
    append(&*store, "s", &run_id, lease.epoch, 0, vec![text("a")]).await;
    let (ended, chunk) = store.end(timeout(&run_id)).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.next), (RunStatus::Error, Some(waits)));
    let chunk = chunk.unwrap();
    assert_eq!(chunk.first_index, 1);
    assert!(chunk.frames.contains("\"event\":\"RunError\"") && chunk.frames.contains("\"error_id\":\"run_timeout\""));
    assert_eq!(append(&*store, "s", &run_id, lease.epoch, 1, vec![text("b")]).await, AppendOutcome::Fenced);
    assert_eq!(store.lease(&session("s")).await.unwrap(), None);
    let again = store.acquire(&session("s"), &lease.worker_id, &lease.registration, now()).await.unwrap();
    assert!(again > Epoch(lease.epoch.0 + 1), "the epoch of the end was no worker's");
    assert_eq!(store.end(timeout(&run_id)).await.unwrap(), None);
    let row = store.run(&run_id).await.unwrap().unwrap();
    assert_eq!(row.failure.unwrap().message, "took too long");
    assert_eq!((row.next_index, row.content), (2, None));
}

pub async fn the_servers_end_may_be_for_one_epoch(database: &impl Database) {
    let store = database.open();
    let (run_id, first) = running(&*store, "s").await;
    let old = ServerEnd { epoch: Some(first.epoch), ..timeout(&run_id) };
    fail(&*store, "s", &run_id, first.epoch, 0).await;
    assert!(matches!(store.resume(resumption(&run_id, 0, None)).await.unwrap(), ResumeOutcome::Resumed { .. }));
    assert_eq!(store.end(old.clone()).await.unwrap(), None, "it waits for its turn again");
    let second = store.take(&run_id, &first.worker_id, &first.registration, now()).await.unwrap().unwrap();
    assert_eq!(store.end(old).await.unwrap(), None, "it is executed again");
    let (ended, _) = store.end(ServerEnd { epoch: Some(second.epoch), ..timeout(&run_id) }).await.unwrap().unwrap();
    assert_eq!(ended.status, RunStatus::Error);
}

pub async fn the_servers_end_of_a_waiting_run_fences_nobody(database: &impl Database) {
    let store = database.open();
    let (head, lease) = running(&*store, "s").await;
    let waits = accept(&*store, "s").await;
    let (ended, _) = store.end(timeout(&waits)).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.next), (RunStatus::Error, None));
    appended(append(&*store, "s", &head, lease.epoch, 0, vec![text("still mine")]).await);
}

pub async fn heads_without_a_worker_wait(database: &impl Database) {
    let store = database.open();
    let (pending, _behind) = (accept(&*store, "a").await, accept(&*store, "a").await);
    let (lost, lease_of_lost) = running(&*store, "b").await;
    let (_busy, _) = running(&*store, "c").await;
    turn(&*store, "d").await;
    store.release(&session("b"), &lease_of_lost).await.unwrap();
    let waiting = store.waiting(10).await.unwrap();
    let found: Vec<_> = waiting.iter().map(|waiting| (&waiting.run_id, waiting.status)).collect();
    assert_eq!(found, [(&pending, RunStatus::Pending), (&lost, RunStatus::Running)], "oldest first");
    assert_eq!(store.waiting(1).await.unwrap().len(), 1);
    lease(&*store, "b", "b2").await;
    assert_eq!(store.waiting(10).await.unwrap().len(), 1);
}
