//! Replicas and their workers.

use std::time::Duration;

use cadre_protocol::run::RunStatus;
use cadre_store::Store;
use cadre_store::workers::{Departure, Isolation, ReplicaId, WorkerRow};

use super::Database;
use super::fixtures::*;

/// Nobody is silent for that long.
const LONG: Duration = Duration::from_secs(3_600);

async fn replica(store: &dyn Store) -> ReplicaId {
    let replica = ReplicaId::generate();
    store.beat(&replica).await.unwrap();
    replica
}

async fn register(store: &dyn Store, name: &str, registration: &str, replica: &ReplicaId, of: Option<&str>) {
    let row = WorkerRow {
        worker_id: worker(name),
        registration: registration.into(),
        replica: replica.clone(),
        session_id: of.map(session),
    };
    store.register(&row).await.unwrap();
}

async fn waiting(store: &dyn Store) -> Vec<RunStatus> {
    store.waiting(100).await.unwrap().iter().map(|waiting| waiting.status).collect()
}

pub async fn a_worker_that_leaves_leaves_its_runs(database: &impl Database) {
    let store = database.open();
    let here = replica(&*store).await;
    register(&*store, "w", "w", &here, None).await;
    let (one, lease) = running(&*store, "s").await;
    let (two, _) = running(&*store, "t").await;
    let mut runs: Vec<_> = store.runs_at(&here).await.unwrap().into_iter().map(|run| run.waiting.run_id).collect();
    runs.sort();
    let mut expected = vec![one.clone(), two];
    expected.sort();
    assert_eq!(runs, expected);
    let placed = store.runs_of_worker(&worker("w")).await.unwrap();
    assert!(placed.iter().any(|run| run.lease == lease && !run.cancel_requested));
    store.cancel(&one, None, "", now()).await.unwrap();
    assert_eq!(store.runs_at(&here).await.unwrap().iter().filter(|run| run.cancel_requested).count(), 1);
    assert_eq!(store.leave(&worker("w"), "w", &here).await.unwrap(), Departure::Lost);
    assert_eq!(waiting(&*store).await, [RunStatus::Running; 2]);
    assert!(store.runs_at(&here).await.unwrap().is_empty());
}

pub async fn a_worker_that_has_moved_keeps_its_runs(database: &impl Database) {
    let store = database.open();
    let (old, new) = (replica(&*store).await, replica(&*store).await);
    register(&*store, "w", "w", &old, Some("s")).await;
    let (run_id, lease) = running(&*store, "s").await;
    register(&*store, "w", "w", &new, Some("s")).await;
    assert_eq!(store.leave(&worker("w"), "w", &old).await.unwrap(), Departure::Moved);
    assert_eq!(waiting(&*store).await, []);
    assert!(store.is_elsewhere(&session("s"), &old, LONG).await.unwrap());
    assert!(!store.is_elsewhere(&session("s"), &new, LONG).await.unwrap());
    appended(append(&*store, "s", &run_id, lease.epoch, 0, vec![text("x")]).await);
}

pub async fn another_process_takes_a_workers_place(database: &impl Database) {
    let store = database.open();
    let (old, new) = (replica(&*store).await, replica(&*store).await);
    register(&*store, "w", "w", &old, Some("s")).await;
    let (run_id, lease) = running(&*store, "s").await;
    register(&*store, "w", "again", &new, Some("s")).await;
    assert_eq!(waiting(&*store).await, [RunStatus::Running]);
    assert_eq!(store.leave(&worker("w"), "w", &old).await.unwrap(), Departure::Replaced);
    let started = store.take(&run_id, &worker("w"), "again", now()).await.unwrap().unwrap();
    assert_eq!((started.epoch.0, started.run.attempt), (lease.epoch.0 + 1, 2));
    // An idle session's lease goes as well.
    complete(&*store, "s", &run_id, started.epoch, 0).await;
    register(&*store, "w", "third", &new, Some("s")).await;
    assert_eq!(store.lease(&session("s")).await.unwrap(), None);
}

pub async fn only_a_dead_replicas_runs_are_released_and_once(database: &impl Database) {
    let store = database.open();
    let (here, live, dead) = (replica(&*store).await, replica(&*store).await, ReplicaId::generate());
    for (name, replica) in [("here", &here), ("live", &live), ("dead", &dead)] {
        register(&*store, name, name, replica, None).await;
    }
    for number in 0..8 {
        for (name, registration) in [("here", "here"), ("live", "live"), ("dead", "dead"), ("none", "none")] {
            let id = format!("{name}{number}");
            let run_id = accept(&*store, &id).await;
            assert!(store.take(&run_id, &worker(name), registration, now()).await.unwrap().is_some());
        }
    }
    let of_here = store.release_lost(&here, LONG);
    let (one, two) = tokio::join!(of_here, store.release_lost(&live, LONG));
    let (one, two) = (one.unwrap(), two.unwrap());
    let released: Vec<_> = one.iter().chain(&two).map(|run| run.lease.registration.as_str()).collect();
    assert_eq!(released.len(), 16, "each once: {released:?}");
    assert!(released.iter().all(|name| ["dead", "none"].contains(name)), "{released:?}");
    assert_eq!(waiting(&*store).await.len(), 16);
    assert!(store.release_lost(&here, LONG).await.unwrap().is_empty());
}

pub async fn only_an_idle_session_loses_its_worker(database: &impl Database) {
    let store = database.open();
    let (here, other, dead) = (replica(&*store).await, replica(&*store).await, ReplicaId::generate());
    register(&*store, "w", "w", &here, Some("s")).await;
    let (run_id, lease) = running(&*store, "s").await;
    assert!(!store.retire(&session("s"), &here, LONG).await.unwrap(), "it runs");
    complete(&*store, "s", &run_id, lease.epoch, 0).await;
    assert!(!store.retire(&session("s"), &other, LONG).await.unwrap(), "its worker is elsewhere");
    assert!(store.retire(&session("s"), &here, LONG).await.unwrap());
    assert_eq!(store.lease(&session("s")).await.unwrap(), None);
    register(&*store, "w", "w", &dead, Some("s")).await;
    assert!(store.retire(&session("s"), &here, LONG).await.unwrap(), "nobody has its worker");
    accept(&*store, "s").await;
    assert!(!store.retire(&session("s"), &here, LONG).await.unwrap(), "a run waits");
}

pub async fn a_workers_report_lives_as_long_as_its_connection(database: &impl Database) {
    let store = database.open();
    let here = replica(&*store).await;
    register(&*store, "w", "w", &here, None).await;
    let report = Isolation { worker_id: worker("w"), isolated: false, detail: "it answered".into() };
    store.report_isolation("old", &report).await.unwrap();
    assert!(store.isolations().await.unwrap().is_empty(), "not of this process");
    store.report_isolation("w", &report).await.unwrap();
    assert_eq!(store.isolations().await.unwrap(), [report]);
    store.leave(&worker("w"), "w", &here).await.unwrap();
    assert!(store.isolations().await.unwrap().is_empty());
}

pub async fn of_many_that_take_a_run_one_gets_it(database: &impl Database) {
    let store = database.open();
    for round in 0..5 {
        let run_id = accept(&*store, &format!("s{round}")).await;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..8 {
            let (store, run_id, name) = (store.clone(), run_id.clone(), number.to_string());
            tasks.spawn(async move { store.take(&run_id, &worker(&name), &name, now()).await.unwrap().is_some() });
        }
        assert_eq!(tasks.join_all().await.into_iter().filter(|took| *took).count(), 1);
        assert_eq!(store.run(&run_id).await.unwrap().unwrap().attempt, 1);
    }
}
