//! Cancels that come before their runs.

use cadre_protocol::ids::RunId;
use cadre_protocol::run::RunStatus;
use cadre_store::Store;
use cadre_store::rows::{AcceptOutcome, Claim, NewRun, Principal};

use super::Database;
use super::fixtures::*;

fn chosen(id: &str, session: &str) -> NewRun {
    NewRun { run_id: RunId::new(id).unwrap(), chosen_id: true, ..new_run(session) }
}

async fn status(store: &dyn Store, run: NewRun) -> RunStatus {
    accepted(store, run).await.0.status
}

pub async fn a_cancel_before_its_run_ends_it_at_once(database: &impl Database) {
    let store = database.open();
    let id = RunId::new("r").unwrap();
    assert!(store.cancel_later(&id, Some(&principal()), now() + 10_000).await.unwrap());
    let lease = lease(&*store, "s", "w").await;
    let run = NewRun { claim: Some(Claim::Held(lease)), ..chosen("r", "s") };
    let (run, before, started) = accepted(&*store, run).await;
    assert_eq!((run.status, run.cancellation_stage.as_deref()), (RunStatus::Cancelled, Some("PENDING")));
    assert!(before.is_none() && started.is_none() && run.finished_at_ms.is_some());
    assert!(frames(&*store, &id).await.contains("event: RunCancelled"));
    // The line goes on, the session is as after any other run, and the cancel is spent.
    let next = accept(&*store, "s").await;
    assert_eq!(store.waiting_on(&next).await.unwrap(), None);
    assert!(matches!(store.accept(chosen("r", "s")).await.unwrap(), AcceptOutcome::RunExists));
    assert!(!store.cancel_later(&id, None, now() + 10_000).await.unwrap(), "there is such a run");
}

pub async fn a_cancel_waits_only_for_its_own_and_not_for_ever(database: &impl Database) {
    let store = database.open();
    let other = Principal("key:other".into());
    for (id, owner, expires) in [
        ("foreign", Some(&other), now() + 10_000),
        ("expired", Some(&principal()), now()),
        ("generated", None, now() + 10_000),
        ("anybody", None, now() + 10_000),
    ] {
        assert!(store.cancel_later(&RunId::new(id).unwrap(), owner, expires).await.unwrap(), "{id}");
    }
    assert_eq!(status(&*store, chosen("foreign", "a")).await, RunStatus::Pending);
    assert_eq!(status(&*store, chosen("expired", "b")).await, RunStatus::Pending);
    assert_eq!(status(&*store, NewRun { chosen_id: false, ..chosen("generated", "c") }).await, RunStatus::Pending);
    assert_eq!(status(&*store, chosen("anybody", "d")).await, RunStatus::Cancelled);
}

pub async fn a_cancel_and_its_run_at_once_never_miss_each_other(database: &impl Database) {
    let store = database.open();
    for n in 0..50 {
        let id = RunId::new(format!("r{n}")).unwrap();
        let session = format!("s{n}");
        let (noted, run) =
            tokio::join!(store.cancel_later(&id, None, now() + 10_000), store.accept(chosen(id.as_str(), &session)));
        assert!(matches!(run.unwrap(), AcceptOutcome::Accepted { .. }));
        let status = store.run(&id).await.unwrap().unwrap().status;
        let expected = if noted.unwrap() { RunStatus::Cancelled } else { RunStatus::Pending };
        assert_eq!(status, expected, "{n}");
    }
}
