//! Stores that go away.

use cadre_protocol::run::RunStatus;
use cadre_store::StoreError;

use super::Database;
use super::fixtures::*;

pub async fn what_was_acknowledged_is_there_after_a_crash(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let mut acknowledged = String::new();
    for number in 0..20_u64 {
        let (_, chunk, _) = appended(append(&*store, "s", &run_id, lease.epoch, number, vec![text("x")]).await);
        acknowledged.push_str(&chunk.unwrap().frames);
    }
    drop(store);
    let store = database.open();
    assert_eq!(frames(&*store, &run_id).await, acknowledged);
    appended(append(&*store, "s", &run_id, lease.epoch, 20, vec![completed("x")]).await);
    drop(store);
    assert_eq!(database.open().run(&run_id).await.unwrap().unwrap().status, RunStatus::Completed);
}

pub async fn a_closed_store_says_so(database: &impl Database) {
    let store = database.open();
    let (run_id, _) = running(&*store, "s").await;
    store.model_call(model_call(&run_id, now(), None)).await.unwrap();
    store.close().await;
    store.close().await;
    assert!(matches!(store.accept(new_run("s")).await, Err(StoreError::Closed)));
    assert!(matches!(store.run(&run_id).await, Err(StoreError::Closed)));
    let store = database.open();
    let new = lease(&*store, "s", "b").await;
    let started = store.start(&run_id, &new, now()).await.unwrap().unwrap();
    assert_eq!(started.progress.model_calls, 1, "what was queued was written");
}
