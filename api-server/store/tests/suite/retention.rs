//! What the record forgets.

use cadre_protocol::ids::RunId;
use cadre_protocol::run::{Attachment, RunStatus};
use cadre_store::Store;
use cadre_store::rows::upkeep::{Expiry, OldRun};
use cadre_store::rows::{AcceptOutcome, BlobKey, IdempotencyKey, NewRun, Origin};

use super::Database;
use super::fixtures::*;

fn keyed(session: &str, key: &str) -> NewRun {
    let key = IdempotencyKey { key: key.into(), body_sha256: "h".into() };
    NewRun { idempotency: Some(key), ..new_run(session) }
}

async fn is_replayed(store: &dyn Store, run: NewRun) -> bool {
    matches!(store.accept(run).await.unwrap(), AcceptOutcome::Replayed(_))
}

pub async fn keys_and_cancels_expire_but_not_those_of_open_runs(database: &impl Database) {
    let store = database.open();
    let (ended, open) = (keyed("a", "ended"), keyed("b", "open"));
    let object = Origin::RunObject { uid: "u".into(), name: "n".into() };
    let object = NewRun { origin: object, ..keyed("c", "u") };
    for run in [&ended, &open, &object] {
        accepted(&*store, run.clone()).await;
    }
    for run in [&ended, &object] {
        store.cancel(&run.run_id, None, "x", now()).await.unwrap();
    }
    let id = RunId::new("later").unwrap();
    store.cancel_later(&id, None, now()).await.unwrap();
    let keep = Expiry { keys_before_ms: ended.at_ms, now_ms: 0, limit: 10 };
    assert_eq!(store.expire(keep).await.unwrap(), 0, "nothing is old yet");
    let later = now();
    assert_eq!(store.expire(Expiry { keys_before_ms: later, now_ms: later, limit: 10 }).await.unwrap(), 2);
    let again = |run: &NewRun| NewRun { run_id: RunId::generate(), session_id: session("d"), ..run.clone() };
    assert!(!is_replayed(&*store, again(&ended)).await, "it may be used again");
    assert!(is_replayed(&*store, again(&open)).await, "its run has not ended");
    assert!(is_replayed(&*store, again(&object)).await, "the object may still be there");
}

pub async fn a_round_removes_a_bounded_number(database: &impl Database) {
    let store = database.open();
    for n in 0..5 {
        let run = keyed(&format!("s{n}"), &format!("k{n}"));
        let run_id = accepted(&*store, run).await.0.run_id;
        store.cancel(&run_id, None, "x", now()).await.unwrap();
    }
    let expiry = Expiry { keys_before_ms: now(), now_ms: 0, limit: 3 };
    assert_eq!(store.expire(expiry).await.unwrap(), 3);
    assert_eq!(store.expire(expiry).await.unwrap(), 2);
}

pub async fn old_runs_go_with_all_that_hangs_on_them(database: &impl Database) {
    let store = database.open();
    let old = turn(&*store, "a").await;
    store.model_call(model_call(&old, now(), None)).await.unwrap();
    let open = accept(&*store, "a").await;
    let before = now();
    let young = turn(&*store, "b").await;
    let found = store.old_runs(before, 10).await.unwrap();
    assert_eq!(found, [OldRun { run_id: old.clone(), session_id: session("a") }]);
    let other = OldRun { run_id: open.clone(), session_id: session("a") };
    assert!(!store.delete_run(&other, before).await.unwrap(), "it has not ended");
    assert!(store.delete_run(&found[0], before).await.unwrap());
    assert!(!store.delete_run(&found[0], before).await.unwrap(), "another replica was faster");
    assert!(store.detail(&old, None).await.unwrap().is_none());
    assert_eq!(store.events(&old, None, usize::MAX).await.unwrap(), None);
    assert_eq!(store.run(&open).await.unwrap().unwrap().status, RunStatus::Pending);
    assert!(store.run(&young).await.unwrap().is_some());
    assert!(store.empty_sessions(now(), 10).await.unwrap().is_empty(), "both have a run");
    store.cancel(&open, None, "x", now()).await.unwrap();
    let after = now();
    assert!(store.delete_run(&other, after).await.unwrap());
    assert_eq!(store.empty_sessions(after, 10).await.unwrap(), [session("a")]);
    assert!(store.empty_sessions(before, 10).await.unwrap().is_empty(), "something happened to it since");
}

/// Later than any clock's time of a test.
const FAR_MS: u64 = 9_000_000_000_000;

/// A run with a file, which has ended.
async fn with_file(store: &dyn Store, session_id: &str, key: &BlobKey) -> OldRun {
    let file =
        Attachment { name: "a.txt".into(), media_type: "text/plain".into(), size: 5, digest: key.digest.clone() };
    let mut run = new_run(session_id);
    run.input.files = vec![file];
    let run_id = accepted(store, run).await.0.run_id;
    store.cancel(&run_id, None, "x", now()).await.unwrap();
    OldRun { run_id, session_id: session(session_id) }
}

pub async fn files_go_with_the_last_run_that_names_them(database: &impl Database) {
    let store = database.open();
    let key = store.put(&place("a"), b"bytes".to_vec()).await.unwrap().unwrap();
    let (first, second) = (with_file(&*store, "a", &key).await, with_file(&*store, "a", &key).await);
    let other = store.put(&place("b"), b"bytes".to_vec()).await.unwrap().unwrap();
    with_file(&*store, "b", &other).await;
    assert!(store.delete_run(&first, FAR_MS).await.unwrap());
    assert!(store.get(&key, 0, 9).await.unwrap().is_some(), "the second run has it too");
    assert!(store.delete_run(&second, FAR_MS).await.unwrap());
    assert!(store.get(&key, 0, 9).await.unwrap().is_none());
    assert!(store.get(&other, 0, 9).await.unwrap().is_some(), "another session's is its own");
    // One that was stored again lately is for a run that is about to come.
    let key = store.put(&place("c"), b"bytes".to_vec()).await.unwrap().unwrap();
    let run = with_file(&*store, "c", &key).await;
    assert!(store.delete_run(&run, now()).await.unwrap());
    assert!(store.get(&key, 0, 9).await.unwrap().is_some());
}

pub async fn files_of_refused_runs_go(database: &impl Database) {
    let store = database.open();
    let orphan = store.put(&place("refused"), b"bytes".to_vec()).await.unwrap().unwrap();
    let key = store.put(&place("a"), b"bytes".to_vec()).await.unwrap().unwrap();
    with_file(&*store, "a", &key).await;
    let day_ms = 24 * 3_600_000;
    let clock_ms = u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let expire = async |now_ms| {
        store.expire(Expiry { keys_before_ms: 0, now_ms, limit: 10 }).await.unwrap();
        (store.get(&orphan, 0, 9).await.unwrap().is_some(), store.get(&key, 0, 9).await.unwrap().is_some())
    };
    assert_eq!(expire(clock_ms + day_ms / 2).await, (true, true), "its run may still come");
    assert_eq!(expire(clock_ms + 2 * day_ms).await, (false, true));
}
