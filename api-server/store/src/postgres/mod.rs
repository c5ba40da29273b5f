//! PostgreSQL: many replicas on one database.
//!
//! Two writers a replica, sessions spread over them, each with group commit. Statements that need no answer travel with
//! the next that does. Rows that replicas could fight over are locked first, in one order. Must not know what the rows
//! mean.

mod changes;
mod connection;
mod values;

use std::time::Duration;

use tokio::sync::broadcast;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::db::DbError;
use crate::engine::driver::{Driver, Purpose};
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::postgres::changes::Changes;
use crate::postgres::connection::PostgresConnection;
use crate::rows::Change;

/// Migrations, oldest first. Numbers and names are those of SQLite's.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/postgres/0001_initial.sql")];

/// Silence after which an idle connection is probed, and after which one is given up whose data are not acknowledged:
/// a database whose machine is gone must not hold writers for the hours of the system's defaults.
const SILENCE: Duration = Duration::from_secs(10);

/// How to connect.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host/database` or `host=… user=…`, with several hosts where a standby may take over: the
    /// one that can be written is used. Connections are not encrypted: `sslmode=require` is refused.
    pub url: String,
    /// Writers. More than two make commits smaller, not faster.
    pub writers: usize,
    /// Connections for reads.
    pub readers: usize,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
}

impl std::fmt::Debug for PostgresOptions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url: _, writers, readers, connect_timeout } = self;
        // The URL may hold a password.
        formatter
            .debug_struct("PostgresOptions")
            .field("writers", writers)
            .field("readers", readers)
            .field("connect_timeout", connect_timeout)
            .finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// Defaults for a database.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), writers: 2, readers: 4, connect_timeout: Duration::from_secs(5) }
    }
}

/// The record in PostgreSQL.
pub type PostgresStore = SqlStore<Postgres>;

impl PostgresStore {
    /// Connects. The schema is not touched: see [`crate::traits::Schema`]. Blocks: async callers use a blocking thread.
    ///
    /// # Errors
    /// When the URL is wrong or the database does not answer.
    pub fn open(options: &PostgresOptions) -> Result<Self, StoreError> {
        Self::start(Postgres::new(options)?)
    }
}

/// Makes PostgreSQL connections.
pub struct Postgres {
    config: tokio_postgres::Config,
    changes: Changes,
    writers: usize,
    readers: usize,
}

impl Postgres {
    fn new(options: &PostgresOptions) -> Result<Self, StoreError> {
        let mut config: tokio_postgres::Config =
            options.url.parse().map_err(|_| StoreError::Unavailable("the database's URL can't be read".into()))?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(StoreError::Unavailable("encrypted connections are not supported".into()));
        }
        config.connect_timeout(options.connect_timeout);
        if config.get_keepalives_interval().is_none() {
            config.keepalives_idle(SILENCE).keepalives_interval(SILENCE / 2).keepalives_retries(3);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE);
        }
        // After a fail-over a name may still lead to the old server, or to a standby: that one's reads would be old.
        if config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_application_name().is_none() {
            config.application_name("cadre");
        }
        let changes = Changes::start(config.clone())?;
        Ok(Self { config, changes, writers: options.writers.max(1), readers: options.readers.max(1) })
    }
}

impl Driver for Postgres {
    type Connection = PostgresConnection;

    fn connect(&self, purpose: Purpose) -> Result<PostgresConnection, DbError> {
        PostgresConnection::open(&self.config, purpose, self.changes.clone())
    }

    fn migrations(&self) -> &'static [&'static str] {
        MIGRATIONS
    }

    fn writers(&self) -> usize {
        self.writers
    }

    fn readers(&self) -> usize {
        self.readers
    }

    fn changes(&self) -> Option<broadcast::Receiver<Change>> {
        Some(self.changes.subscribe())
    }

    fn tell(&self, change: &Change) {
        self.changes.tell(change);
    }
}
