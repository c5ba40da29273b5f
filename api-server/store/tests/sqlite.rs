//! What only SQLite can do wrong: files that are locked, full, of another time, or no database.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "suite/fixtures.rs"]
#[expect(dead_code, reason = "shared with the suite")]
mod fixtures;

use std::path::Path;
use std::time::Duration;

use cadre_store::StoreError;
use cadre_store::rows::AcceptOutcome;
use cadre_store::sqlite::{Durability, SqliteOptions, SqliteStore};
use cadre_store::traits::{Blobs as _, Journal as _, Runs as _, Schema as _, Sessions as _};
use fixtures::*;

async fn open(options: SqliteOptions) -> SqliteStore {
    let store = SqliteStore::open_with(options).unwrap();
    store.migrate().await.unwrap();
    store
}

fn raw(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

#[tokio::test]
async fn a_schema_of_another_time_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cadre.db");
    let store = SqliteStore::open(&path, Durability::Full).unwrap();
    assert!(matches!(store.check().await, Err(StoreError::MigrationRequired { found: 0, wanted: 1 })));
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    raw(&path).execute("insert into schema_versions values (99, 0)", []).unwrap();
    assert!(matches!(store.check().await, Err(StoreError::SchemaTooNew { found: 99, wanted: 1 })));
    assert!(matches!(store.migrate().await, Err(StoreError::SchemaTooNew { .. })));
}

#[tokio::test]
async fn what_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "not a database, though long enough to look like one".repeat(100)).unwrap();
    for path in [path, folder.path().join("missing/cadre.db"), folder.path().to_owned()] {
        let refused = SqliteStore::open(&path, Durability::Full);
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_file_is_unavailable_for_a_while_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cadre.db");
    let store = open(SqliteOptions { busy_timeout: Duration::from_millis(20), ..SqliteOptions::file(&path) }).await;
    let (run_id, lease) = running(&store, "s").await;
    let other = raw(&path);
    other.execute_batch("begin immediate").unwrap();
    store.model_call(model_call(&run_id, now(), None)).await.unwrap();
    for _ in 0..3 {
        assert!(matches!(store.accept(new_run("t")).await, Err(StoreError::Unavailable(_))));
    }
    assert!(store.run(&run_id).await.unwrap().is_some(), "reads go on");
    other.execute_batch("commit").unwrap();
    complete(&store, "s", &run_id, lease.epoch, 0).await;
    assert_eq!(store.run(&run_id).await.unwrap().unwrap().metrics.model_calls, 1, "the lazy call has waited");
    accept(&store, "t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_file_is_unavailable_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cadre.db");
    let store = open(SqliteOptions { max_bytes: Some(4 << 20), ..SqliteOptions::file(&path) }).await;
    turn(&store, "s").await;
    let mut stored = Vec::new();
    let error = loop {
        let bytes = vec![u8::try_from(stored.len()).unwrap(); 500_000];
        match store.put(&place("s"), bytes).await {
            Ok(key) => stored.push(key.unwrap()),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(!stored.is_empty());
    for key in &stored {
        assert_eq!(store.get(key, 0, 1).await.unwrap().unwrap().total, 500_000);
    }
    assert_eq!(store.delete(&[session("s")], None).await.unwrap().len(), 1);
    store.put(&place("t"), vec![7; 500_000]).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_operations_failure_does_not_harm_the_others_of_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cadre.db");
    let store = std::sync::Arc::new(open(SqliteOptions::file(&path)).await);
    accept(&*store, "bad").await;
    raw(&path).execute("update sessions set state = 'no JSON' where session_id = 'bad'", []).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..60 {
        let store = store.clone();
        tasks.spawn(async move {
            let is_bad = number % 3 == 0;
            let run = new_run(&if is_bad { "bad".to_owned() } else { format!("s{number}") });
            let run_id = run.run_id.clone();
            match (is_bad, store.accept(run).await) {
                (true, Err(StoreError::Corrupt(_))) => assert!(store.run(&run_id).await.unwrap().is_none()),
                (false, Ok(AcceptOutcome::Accepted { .. })) => assert!(store.run(&run_id).await.unwrap().is_some()),
                (is_bad, outcome) => panic!("{is_bad} {outcome:?}"),
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_stays_short() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cadre.db");
    let store = open(SqliteOptions { durability: Durability::Normal, ..SqliteOptions::file(&path) }).await;
    let mut longest = 0;
    for number in 0..240_u8 {
        store.put(&place("s"), vec![number; 500_000]).await.unwrap().unwrap();
        longest = longest.max(std::fs::metadata(folder.path().join("cadre.db-wal")).unwrap().len());
    }
    assert!(longest < 64 << 20, "{longest} of 120 MB");
}

#[tokio::test]
async fn a_database_in_memory_works_alone() {
    let store = SqliteStore::in_memory().unwrap();
    store.migrate().await.unwrap();
    let run_id = turn(&store, "s").await;
    assert_eq!(store.detail(&run_id, None).await.unwrap().unwrap().messages.len(), 2);
    store.close().await;
}
