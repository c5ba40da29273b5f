//! What only PostgreSQL has: other replicas, connections that break, and migrations beside SQLite's.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "suite/fixtures.rs"]
#[expect(dead_code, reason = "shared with the suite")]
mod fixtures;
mod server;

use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::ids::RunId;
use cadre_protocol::journal::Batch;
use cadre_store::StoreError;
use cadre_store::postgres::{PostgresOptions, PostgresStore};
use cadre_store::rows::{AcceptOutcome, Change, IdempotencyKey, NewRun};
use cadre_store::traits::{Changes as _, Journal as _, Leases as _, Runs as _, Schema as _};
use fixtures::*;

const READERS: usize = 2;

fn connect(url: &str) -> Arc<PostgresStore> {
    let options = PostgresOptions { readers: READERS, connect_timeout: server::PATIENCE, ..PostgresOptions::new(url) };
    Arc::new(tokio::task::block_in_place(|| PostgresStore::open(&options)).unwrap())
}

async fn replicas(url: &str, count: usize) -> Vec<Arc<PostgresStore>> {
    let replicas: Vec<_> = (0..count).map(|_| connect(url)).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for replica in replicas.clone() {
        tasks.spawn(async move { replica.migrate().await.unwrap() });
    }
    tasks.join_all().await;
    replicas
}

/// The statements of a migration.
fn statements(sql: &str) -> Vec<String> {
    let code: Vec<&str> = sql.lines().filter(|line| !line.starts_with("--")).collect();
    let normal = code.join("\n").split_whitespace().collect::<Vec<_>>().join(" ");
    normal.split(';').map(|statement| statement.trim().to_owned()).collect()
}

#[test]
fn migrations_have_the_shape_of_sqlites() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
    let names = |database: &str| {
        let entries = std::fs::read_dir(format!("{folder}/{database}")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names("postgres"), names("sqlite"));
    for name in names("sqlite") {
        let read = |database: &str| std::fs::read_to_string(format!("{folder}/{database}/{name}")).unwrap();
        let sqlite = read("sqlite").replace(" blob ", " bytea ").replace(") without rowid;", ");");
        assert_eq!(statements(&sqlite), statements(&read("postgres")), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_migrate_at_once() {
    let url = server::new_schema().await;
    let store = connect(&url);
    assert!(matches!(store.check().await, Err(StoreError::MigrationRequired { found: 0, wanted: 1 })));
    replicas(&url, 3).await;
    store.check().await.unwrap();
    server::execute(&url, "insert into schema_versions values (99, 0)").await;
    assert!(matches!(store.check().await, Err(StoreError::SchemaTooNew { found: 99, wanted: 1 })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_may_only_read_any_more_is_replaced() {
    let server = server::process::Process::start();
    let url = format!("host={} user=cadre dbname=postgres", server.folder());
    let store = replicas(&url, 1).await.remove(0);
    let run_id = accept(&*store, "s").await;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // Sessions that are there follow the server's setting, new ones their database's.
    for statement in [
        "alter system set default_transaction_read_only = on",
        "alter database postgres set default_transaction_read_only = off",
        "select pg_reload_conf()",
    ] {
        client.batch_execute(statement).await.unwrap();
    }
    while client.query_one("show default_transaction_read_only", &[]).await.unwrap().get::<_, &str>(0) != "on" {}
    // Such calls are kept and go along with each later write of their session.
    for _ in 0..3 {
        store.model_call(model_call(&run_id, 1, None)).await.unwrap();
    }
    let again = async { while store.accept(new_run("s")).await.is_err() {} };
    assert!(tokio::time::timeout(server::PATIENCE, again).await.is_ok(), "the next connection can write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_make_one_line() {
    let stores = replicas(&server::new_schema().await, 3).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..60 {
        let store = stores[number % 3].clone();
        tasks.spawn(async move {
            let (row, waiting_on, _) = accepted(&*store, new_run("s")).await;
            (waiting_on, row.run_id)
        });
    }
    let mut before: std::collections::HashMap<Option<RunId>, RunId> = tasks.join_all().await.into_iter().collect();
    let (mut last, mut length) = (None, 0);
    while let Some(next) = before.remove(&last) {
        (last, length) = (Some(next), length + 1);
    }
    assert_eq!(length, 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_agree_on_a_key() {
    let stores = replicas(&server::new_schema().await, 3).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..30_usize {
        let key = IdempotencyKey { key: format!("k{}", number % 2), body_sha256: "h".into() };
        let run = NewRun { idempotency: Some(key), ..new_run(&format!("s{number}")) };
        let store = stores[number % 3].clone();
        tasks.spawn(async move {
            match store.accept(run).await.unwrap() {
                AcceptOutcome::Accepted { .. } => 1,
                AcceptOutcome::Replayed(_) => 0,
                other => panic!("{other:?}"),
            }
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<i32>(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_wins_a_session() {
    let stores = replicas(&server::new_schema().await, 3).await;
    for round in 0..10 {
        let session = format!("s{round}");
        let run_id = accept(&*stores[0], &session).await;
        let mut tasks = tokio::task::JoinSet::new();
        for (number, store) in stores.iter().cloned().enumerate() {
            let (session, run_id) = (session.clone(), run_id.clone());
            tasks.spawn(async move {
                let lease = lease(&*store, &session, &number.to_string()).await;
                let started = store.start(&run_id, &lease, now()).await.unwrap();
                let outcome = append(&*store, &session, &run_id, lease.epoch, 0, vec![text("x")]).await;
                let wrote = matches!(outcome, cadre_store::rows::AppendOutcome::Appended { chunk: Some(_), .. });
                (started.is_some(), wrote)
            });
        }
        let outcomes = tasks.join_all().await;
        assert!(outcomes.iter().any(|(started, _)| *started));
        assert!(outcomes.iter().filter(|(_, wrote)| *wrote).count() <= 1, "index 0 is written once");
        let chunk = stores[1].events(&run_id, None, usize::MAX).await.unwrap();
        assert!(chunk.is_none_or(|chunk| chunk.next_index == 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_is_made_again() {
    let url = format!("{} application_name=broken", server::new_schema().await);
    let stores = replicas(&url, 1).await;
    let store = &stores[0];
    let (run_id, lease) = running(&**store, "s").await;
    for round in 0..5 {
        let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'broken'";
        server::execute(&server::url(), end).await;
        // The connection may still be ending: what is sent into it fails once, never more often.
        let mut failures = 0;
        let next_index = loop {
            let batch =
                Batch { run_id: run_id.clone(), epoch: lease.epoch, first_index: round, entries: vec![text("x")] };
            match store.append(&context(&run_id, "s"), &batch).await {
                Ok(outcome) => break appended(outcome).0,
                Err(StoreError::Unavailable(_)) => failures += 1,
                Err(other) => panic!("{other}"),
            }
        };
        assert!(failures <= 1, "{failures}");
        assert_eq!(next_index, round + 1);
    }
    let mut read = store.lease(&session("s")).await;
    // Each of the connections for reading fails once at most.
    for _ in 0..READERS {
        if read.is_err() {
            read = store.lease(&session("s")).await;
        }
    }
    assert_eq!(read.unwrap(), Some(lease));
}

async fn next(changes: &mut tokio::sync::broadcast::Receiver<Change>) -> Change {
    tokio::time::timeout(Duration::from_secs(30), changes.recv()).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_hear_of_each_others_writes() {
    let url = format!("{} application_name=heard", server::new_database().await);
    let stores = replicas(&url, 2).await;
    let (mut of_writer, mut of_other) = (stores[0].changes().unwrap(), stores[1].changes().unwrap());
    let (run_id, lease) = running(&*stores[0], "s").await;
    let mut index = 0;
    // Until the other replica listens, what it hears is that news may be missed.
    let mut write = async || {
        appended(append(&*stores[0], "s", &run_id, lease.epoch, index, vec![text("x")]).await);
        index += 1;
    };
    let hears = async |changes: &mut tokio::sync::broadcast::Receiver<Change>| {
        while next(changes).await != Change::Run(run_id.clone()) {}
    };
    loop {
        write().await;
        if tokio::time::timeout(Duration::from_millis(200), hears(&mut of_other)).await.is_ok() {
            break;
        }
    }
    let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'heard' \
         and query ilike 'listen%'";
    server::execute(&server::url(), end).await;
    while next(&mut of_other).await != Change::Missed {}
    write().await;
    hears(&mut of_other).await;
    while let Ok(change) = of_writer.try_recv() {
        assert_ne!(change, Change::Run(run_id.clone()), "nobody hears of its own writes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_answer_is_unavailable() {
    for url in ["host=/nonexistent user=cadre", "host=/nonexistent sslmode=require", "postgres://x:y@:bad"] {
        let opened = tokio::task::block_in_place(|| PostgresStore::open(&PostgresOptions::new(url)));
        assert!(matches!(opened, Err(StoreError::Unavailable(_))), "{url}");
    }
}
