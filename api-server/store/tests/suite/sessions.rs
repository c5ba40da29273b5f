//! The end of sessions, blobs, and the schema.

use cadre_protocol::ids::BlobDigest;
use cadre_store::branches::{SessionFork, SessionForkOutcome};
use cadre_store::rows::sessions::SessionEdit;
use cadre_store::rows::{AcceptOutcome, BlobKey, Claim, IdempotencyKey, NewRun, Principal, RunFilter};

use super::Database;
use super::branches::copy;
use super::fixtures::*;

pub async fn a_deleted_session_leaves_nothing(database: &impl Database) {
    let store = database.open();
    let key = IdempotencyKey { key: "k".into(), body_sha256: "h".into() };
    let lease = lease(&*store, "s", "w").await;
    let keyed = NewRun { idempotency: Some(key), claim: Some(Claim::Held(lease.clone())), ..new_run("s") };
    let run_id = accepted(&*store, keyed.clone()).await.0.run_id;
    let blob = store.put(&place("s"), b"bytes".to_vec()).await.unwrap().unwrap();
    assert!(store.delete(&[session("s")], None).await.unwrap().is_empty(), "a run is unfinished");
    store.model_call(model_call(&run_id, now(), None)).await.unwrap();
    complete(&*store, "s", &run_id, lease.epoch, 0).await;
    turn(&*store, "t").await;
    assert_eq!(store.delete(&[session("s"), session("none")], None).await.unwrap(), [session("s")]);
    assert!(store.session(&session("s")).await.unwrap().is_none());
    assert!(store.detail(&run_id, None).await.unwrap().is_none());
    assert_eq!(store.events(&run_id, None, usize::MAX).await.unwrap(), None);
    assert!(store.get(&blob, 0, 10).await.unwrap().is_none());
    assert!(store.lease(&session("s")).await.unwrap().is_none());
    assert_eq!(store.list(RunFilter { limit: 10, ..RunFilter::default() }).await.unwrap().1, 1, "the other's");
    let again = NewRun { claim: None, ..keyed };
    assert!(matches!(store.accept(again).await.unwrap(), AcceptOutcome::Accepted { .. }), "the key is free");
}

pub async fn what_is_asked_for_an_owner_is_theirs_or_not_there(database: &impl Database) {
    let store = database.open();
    let run_id = turn(&*store, "s").await;
    let (own, other) = (principal(), Principal("key:other".into()));
    assert!(store.run_of(&run_id, &own).await.unwrap().is_some());
    assert!(store.run_of(&run_id, &other).await.unwrap().is_none());
    assert!(store.detail(&run_id, Some(&own)).await.unwrap().is_some());
    assert!(store.detail(&run_id, Some(&other)).await.unwrap().is_none());
    assert!(store.session_of(&session("s"), &own).await.unwrap().is_some());
    assert!(store.session_of(&session("s"), &other).await.unwrap().is_none());
    let named = |name: &str| SessionEdit { name: Some(name.into()), ..SessionEdit::default() };
    assert!(store.edit(&session("s"), Some(&other), named("theirs"), now()).await.unwrap().is_none());
    let edited = store.edit(&session("s"), Some(&own), named("mine"), now()).await.unwrap().unwrap();
    assert_eq!(edited.name, "mine");
    let copy = |owner: &Principal| SessionFork { principal: Some(owner.clone()), ..copy("s", "copy") };
    assert_eq!(store.fork_session(copy(&other)).await.unwrap(), SessionForkOutcome::Empty);
    assert_eq!(store.fork_session(copy(&own)).await.unwrap(), SessionForkOutcome::Forked { runs: 1 });
    assert!(store.delete(&[session("s")], Some(&other)).await.unwrap().is_empty());
    assert_eq!(store.delete(&[session("s")], Some(&own)).await.unwrap(), [session("s")]);
}

pub async fn blobs_are_read_in_ranges(database: &impl Database) {
    let store = database.open();
    let bytes: Vec<u8> = (0..(2_u32 << 20) + 100).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let key = store.put(&place("s"), bytes.clone()).await.unwrap().unwrap();
    assert_eq!(key.digest, BlobDigest::of(&bytes));
    assert_eq!(store.put(&place("s"), bytes.clone()).await.unwrap().unwrap(), key, "once more is nothing");
    let total = bytes.len() as u64;
    for (offset, count) in
        [(0, 10), (0, bytes.len()), ((1 << 20) - 5, 10), (2 << 20, 1_000), (total, 5), (total + 9, 5)]
    {
        let range = store.get(&key, offset, count).await.unwrap().unwrap();
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let to = (from + count).min(bytes.len());
        assert!(range.total == total && range.bytes == bytes[from..to], "{offset} {count}");
    }
    let empty = store.put(&place("s"), Vec::new()).await.unwrap().unwrap();
    assert_eq!(store.get(&empty, 0, 10).await.unwrap().unwrap().total, 0);
}

pub async fn blobs_belong_to_a_session(database: &impl Database) {
    let store = database.open();
    let key = store.put(&place("s"), b"secret".to_vec()).await.unwrap().unwrap();
    let foreign = BlobKey { session_id: session("t"), ..key };
    assert_eq!(store.get(&foreign, 0, 10).await.unwrap(), None);
}

pub async fn the_schema_is_current(database: &impl Database) {
    let store = database.open();
    store.check().await.unwrap();
    let (one, two) = tokio::join!(store.migrate(), store.migrate());
    one.and(two).unwrap();
    store.check().await.unwrap();
}
