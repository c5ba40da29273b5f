//! A connection with a small runtime of its own, so that operations can be written without `async`.

use std::collections::HashMap;

use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Statement};

use crate::db::{Db, DbError, EachSpan, Row, Val, unsigned};
use crate::engine::driver::{Connection, Purpose};
use crate::postgres::MIGRATIONS;
use crate::postgres::changes::Changes;
use crate::postgres::values::{self, Owned};

/// Generic plans are made while tables are empty and would stay bad: rows are found by index, always.
const SETTINGS: &str = "set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off; \
     set enable_bitmapscan = off; set jit = off; set lock_timeout = '5s'; set statement_timeout = '30s'; \
     set idle_in_transaction_session_timeout = '60s'";
const SAVEPOINT: &str = "savepoint op;";
const LOCK_SESSION: &str = "select 1 from sessions where session_id = ?1 for update";
const LOCK_RUN: &str = "select 1 from runs where run_id = ?1 for update";
const LOCK_WORKER: &str = "select 1 from workers where worker_id = ?1 for update";
const NOW: &str = "select (extract(epoch from clock_timestamp()) * 1000)::bigint";
/// Any number, as long as nothing else in the database uses it.
const LOCK_SCHEMA: &str = "select pg_advisory_xact_lock(7271826354)";
const LOCK_NAME: &str = "select pg_advisory_xact_lock(hashtextextended(?1, 7271826355))";
const LOCK_SLOTS: &str = "select pg_advisory_xact_lock(7271826356)";

/// Statements that travel together.
const MAX_PENDING: usize = 16;

/// A connection for reads or writes.
pub struct PostgresConnection {
    /// None only while it is dropped.
    runtime: Option<Runtime>,
    client: Client,
    statements: HashMap<String, Statement>,
    begin: &'static str,
    /// Control statements that go out before the next one.
    prefix: String,
    /// Statements whose answer nobody needs, but for their errors.
    pending: Vec<(Statement, Vec<Owned>)>,
    /// Runs of the transaction that other replicas will hear of.
    changed: Vec<String>,
    changes: Changes,
}

impl PostgresConnection {
    /// Connects.
    pub fn open(config: &Config, purpose: Purpose, changes: Changes) -> Result<Self, DbError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| DbError::Unavailable(error.to_string()))?;
        let client = runtime.block_on(async {
            let (client, connection) = config.connect(NoTls).await?;
            tokio::task::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::warn!(%error, "a database connection has ended");
                }
            });
            client.batch_execute(SETTINGS).await?;
            Ok::<_, tokio_postgres::Error>(client)
        });
        let begin = match purpose {
            Purpose::Write => "begin;",
            Purpose::Read => "begin isolation level repeatable read read only;",
        };
        Ok(Self {
            client: client?,
            runtime: Some(runtime),
            statements: HashMap::new(),
            begin,
            prefix: String::new(),
            pending: Vec::new(),
            changed: Vec::new(),
            changes,
        })
    }

    fn runtime(&self) -> Result<&Runtime, DbError> {
        self.runtime.as_ref().ok_or_else(|| DbError::Unavailable("the connection is closed".into()))
    }

    fn prepare(&mut self, sql: &str) -> Result<Statement, DbError> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.runtime()?.block_on(self.client.prepare(&sql.replace('?', "$")))?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Sends what waits, and one more statement, without waiting in between.
    fn send(&mut self, last: Last) -> Result<Vec<tokio_postgres::Row>, DbError> {
        let (prefix, pending) = (std::mem::take(&mut self.prefix), std::mem::take(&mut self.pending));
        if prefix.is_empty() && pending.is_empty() && matches!(last, Last::None) {
            return Ok(Vec::new());
        }
        let client = &self.client;
        let control = async { if prefix.is_empty() { Ok(()) } else { client.batch_execute(&prefix).await } };
        let writes = futures::future::join_all(
            pending
                .iter()
                .map(|(statement, values)| async move { client.execute(statement, &parameters(values)).await }),
        );
        let rows = async {
            match &last {
                Last::Query(statement, values) => client.query(statement, &parameters(values)).await,
                Last::Control(sql) => client.batch_execute(sql).await.map(|()| Vec::new()),
                Last::None => Ok(Vec::new()),
            }
        };
        // Polled in this order, so sent in this order.
        let (control, writes, rows) =
            self.runtime()?.block_on(async { futures::future::join3(control, writes, rows).await });
        control?;
        for written in writes {
            written?;
        }
        Ok(rows?)
    }

    fn control(&mut self, sql: &str) -> Result<(), DbError> {
        self.send(Last::None)?;
        Ok(self.runtime()?.block_on(self.client.batch_execute(sql))?)
    }
}

/// What goes out after all that waits.
enum Last {
    None,
    Control(&'static str),
    Query(Statement, Vec<Owned>),
}

impl Drop for PostgresConnection {
    fn drop(&mut self) {
        // May happen on a thread that must not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn owned(values: &[Val<'_>]) -> Vec<Owned> {
    values.iter().map(Owned::from).collect()
}

fn parameters(values: &[Owned]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl From<tokio_postgres::Error> for DbError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(database) = error.as_db_error() else {
            return Self::Unavailable(error.to_string());
        };
        let (state, message) = (database.code(), format!("{}: {}", database.code().code(), database.message()));
        match state {
            &SqlState::UNIQUE_VIOLATION | &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED => {
                Self::Conflict(message)
            }
            &SqlState::LOCK_NOT_AVAILABLE | &SqlState::READ_ONLY_SQL_TRANSACTION => Self::Unavailable(message),
            // Connection, authorization, resources, operator intervention, system error.
            state if ["08", "28", "53", "57", "58"].iter().any(|class| state.code().starts_with(class)) => {
                Self::Unavailable(message)
            }
            _ => Self::Corrupt(message),
        }
    }
}

impl Db for PostgresConnection {
    fn query(&mut self, sql: &str, values: &[Val<'_>]) -> Result<Vec<Row>, DbError> {
        let statement = self.prepare(sql)?;
        self.send(Last::Query(statement, owned(values)))?.iter().map(values::row).collect()
    }

    fn spans(&mut self, sql: &str, values: &[Val<'_>], each: &mut EachSpan<'_>) -> Result<(), DbError> {
        let statement = self.prepare(sql)?;
        let wrong = |error: tokio_postgres::Error| DbError::Corrupt(error.to_string());
        for row in self.send(Last::Query(statement, owned(values)))? {
            let (first, next) = (row.try_get(0).map_err(wrong)?, row.try_get(1).map_err(wrong)?);
            if !each(unsigned(first)?, unsigned(next)?, row.try_get(2).map_err(wrong)?) {
                break;
            }
        }
        Ok(())
    }

    fn execute(&mut self, sql: &str, values: &[Val<'_>]) -> Result<u64, DbError> {
        let statement = self.prepare(sql)?;
        self.send(Last::None)?;
        let values = owned(values);
        Ok(self.runtime()?.block_on(self.client.execute(&statement, &parameters(&values)))?)
    }

    fn write(&mut self, sql: &str, values: &[Val<'_>]) -> Result<(), DbError> {
        let statement = self.prepare(sql)?;
        self.pending.push((statement, owned(values)));
        if self.pending.len() < MAX_PENDING {
            return Ok(());
        }
        self.send(Last::None).map(drop)
    }

    fn script(&mut self, sql: &str) -> Result<(), DbError> {
        self.control(sql)
    }

    fn schema_version(&mut self) -> Result<i64, DbError> {
        let table = "select 1 from pg_tables where schemaname = current_schema() and tablename = 'schema_versions'";
        if self.first(table, &[])?.is_none() {
            return Ok(0);
        }
        let newest = self.first("select coalesce(max(version), 0) from schema_versions", &[])?;
        newest.map_or(Ok(0), |mut row| row.int())
    }

    fn migrations(&self) -> &'static [&'static str] {
        MIGRATIONS
    }

    fn note_change(&mut self, run_id: &str) {
        self.changed.push(run_id.to_owned());
    }

    fn lock_schema(&mut self) -> Result<(), DbError> {
        self.write(LOCK_SCHEMA, &[])
    }

    fn lock_session(&mut self, session_id: &str) -> Result<(), DbError> {
        self.write(LOCK_SESSION, &[Val::Text(session_id)])
    }

    fn lock_name(&mut self, name: &str) -> Result<(), DbError> {
        self.write(LOCK_NAME, &[Val::Text(name)])
    }

    fn lock_run(&mut self, run_id: &str) -> Result<(), DbError> {
        self.write(LOCK_RUN, &[Val::Text(run_id)])
    }

    fn lock_worker(&mut self, worker_id: &str) -> Result<(), DbError> {
        self.write(LOCK_WORKER, &[Val::Text(worker_id)])
    }

    fn lock_slots(&mut self) -> Result<(), DbError> {
        self.write(LOCK_SLOTS, &[])
    }

    fn ascii_lower(&self, column: &str) -> String {
        format!("lower({column} collate \"C\")")
    }

    fn now_ms(&mut self) -> Result<u64, DbError> {
        let now = self.first(NOW, &[])?;
        now.map_or_else(|| Err(DbError::Corrupt("the database has no time".into())), |mut row| row.u64())
    }
}

impl Connection for PostgresConnection {
    fn begin(&mut self) -> Result<(), DbError> {
        // Lets the connection see that it was closed meanwhile.
        self.runtime()?.block_on(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        if self.client.is_closed() {
            return Err(DbError::Unavailable("the database has closed the connection".into()));
        }
        self.pending.clear();
        self.begin.clone_into(&mut self.prefix);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), DbError> {
        // After a write that fails the commit is a rollback, and the write's answer says why.
        self.send(Last::Control("commit"))?;
        for run_id in self.changed.drain(..) {
            self.changes.wrote(&run_id);
        }
        Ok(())
    }

    fn rollback(&mut self) {
        self.pending.clear();
        self.changed.clear();
        let was_sent = !self.prefix.starts_with(self.begin);
        self.prefix.clear();
        if was_sent && let Err(error) = self.control("rollback") {
            tracing::debug!(%error, "a transaction could not be rolled back");
        }
    }

    fn savepoint(&mut self) -> Result<(), DbError> {
        self.prefix.push_str(SAVEPOINT);
        Ok(())
    }

    fn release(&mut self) -> Result<(), DbError> {
        if !self.pending.is_empty() {
            self.send(Last::None)?;
        }
        if self.prefix.ends_with(SAVEPOINT) {
            self.prefix.truncate(self.prefix.len() - SAVEPOINT.len());
        } else {
            // Not `release savepoint`, which would end like a savepoint.
            self.prefix.push_str("release op;");
        }
        Ok(())
    }

    fn undo(&mut self) -> Result<(), DbError> {
        self.pending.clear();
        if self.prefix.ends_with(SAVEPOINT) {
            self.prefix.truncate(self.prefix.len() - SAVEPOINT.len());
            return Ok(());
        }
        self.control("rollback to savepoint op; release savepoint op")
    }

    fn is_lost(&self) -> bool {
        self.client.is_closed()
    }

    fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}
