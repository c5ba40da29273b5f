//! SQLite: one file, one process, one writer.
//!
//! WAL with a bounded log; `synchronous` FULL makes every commit survive the loss of power, NORMAL only that of the
//! process. Must not know what the rows mean.

mod checkpoint;
mod connection;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::db::DbError;
use crate::engine::driver::{Driver, Purpose};
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::sqlite::checkpoint::Checkpointer;
use crate::sqlite::connection::SqliteConnection;

/// Migrations, oldest first. Numbers and names are those of PostgreSQL's.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/sqlite/0001_initial.sql")];

/// What a commit survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// Loss of power.
    #[default]
    Full,
    /// Loss of the process; a loss of power may take the newest commits, never the file.
    Normal,
}

/// Where the data are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In a file and its `-wal` and `-shm`.
    File(PathBuf),
    /// In this process, for tests.
    Memory,
}

/// How to open a database.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// Where.
    pub location: Location,
    /// Durability.
    pub durability: Durability,
    /// How long to wait for another process that has the file locked.
    pub busy_timeout: Duration,
    /// Largest size of the file, in bytes; writes beyond it fail as unavailable.
    pub max_bytes: Option<u64>,
    /// Connections for reads.
    pub readers: usize,
}

impl SqliteOptions {
    /// Defaults for a file.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            location: Location::File(path.into()),
            durability: Durability::default(),
            busy_timeout: Duration::from_secs(5),
            max_bytes: None,
            readers: 4,
        }
    }
}

/// The record in SQLite.
pub type SqliteStore = SqlStore<Sqlite>;

impl SqliteStore {
    /// Opens or creates a file. The schema is not touched: see [`crate::traits::Schema`]. Blocks.
    ///
    /// # Errors
    /// When the file can't be opened or is no database.
    pub fn open(path: &Path, durability: Durability) -> Result<Self, StoreError> {
        Self::open_with(SqliteOptions { durability, ..SqliteOptions::file(path) })
    }

    /// A database that goes with the store.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn in_memory() -> Result<Self, StoreError> {
        Self::open_with(SqliteOptions { location: Location::Memory, ..SqliteOptions::file("") })
    }

    /// Opens with options.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(options: SqliteOptions) -> Result<Self, StoreError> {
        let checkpointer = match &options.location {
            Location::File(path) => Some(Arc::new(Checkpointer::start(path.clone())?)),
            Location::Memory => None,
        };
        Self::start(Sqlite { options, checkpointer })
    }
}

/// Makes SQLite connections.
pub struct Sqlite {
    options: SqliteOptions,
    checkpointer: Option<Arc<Checkpointer>>,
}

impl Driver for Sqlite {
    type Connection = SqliteConnection;

    fn connect(&self, purpose: Purpose) -> Result<SqliteConnection, DbError> {
        SqliteConnection::open(&self.options, purpose, self.checkpointer.clone())
    }

    fn migrations(&self) -> &'static [&'static str] {
        MIGRATIONS
    }

    fn readers(&self) -> usize {
        match self.options.location {
            Location::File(_) => self.options.readers.max(1),
            Location::Memory => 0,
        }
    }
}
