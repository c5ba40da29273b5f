//! One PostgreSQL for a test program, with a schema for each test.

#[expect(dead_code, reason = "shared with tests of the API server, which stop it")]
pub mod process;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use process::Process;

/// Longest wait for a connection; generous, because machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

static SERVER: OnceLock<Process> = OnceLock::new();
static SCHEMAS: AtomicU32 = AtomicU32::new(0);

/// Parameters of a connection to the server.
pub fn url() -> String {
    format!("host={} user=cadre dbname=postgres", SERVER.get_or_init(Process::start).folder())
}

/// Parameters of a connection to a new, empty schema.
pub async fn new_schema() -> String {
    let name = format!("test{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
    execute(&url(), &format!("create schema {name}")).await;
    format!("{} options='-c search_path={name}'", url())
}

/// Parameters of a connection to a new, empty database. Schemas of one database share its news.
pub async fn new_database() -> String {
    let name = format!("test{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
    execute(&url(), &format!("create database {name}")).await;
    url().replace("dbname=postgres", &format!("dbname={name}"))
}

/// Runs statements.
pub async fn execute(url: &str, sql: &str) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
}
