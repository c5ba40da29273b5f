//! A connection.

use std::sync::Arc;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection as Sqlite3, ErrorCode, OpenFlags, ToSql, params_from_iter};

use crate::db::{Cell, Db, DbError, EachSpan, Row, Val, unsigned};
use crate::engine::driver::{Connection, Purpose};
use crate::sqlite::checkpoint::{self, Checkpointer};
use crate::sqlite::{Durability, Location, MIGRATIONS, SqliteOptions};

/// Prepared statements kept by a connection: more than there are.
const STATEMENTS: usize = 128;

/// A connection for reads or writes.
pub struct SqliteConnection {
    inner: Sqlite3,
    begin: &'static str,
    is_memory: bool,
    checkpointer: Option<Arc<Checkpointer>>,
}

impl SqliteConnection {
    /// Opens a connection.
    pub fn open(
        options: &SqliteOptions,
        purpose: Purpose,
        checkpointer: Option<Arc<Checkpointer>>,
    ) -> Result<Self, DbError> {
        let inner = match &options.location {
            Location::Memory => Sqlite3::open_in_memory()?,
            Location::File(path) => Sqlite3::open_with_flags(
                path,
                OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
            )?,
        };
        inner.set_prepared_statement_cache_capacity(STATEMENTS);
        inner.busy_timeout(options.busy_timeout)?;
        // Readers' pages are void after the next commit, so theirs are few.
        inner.pragma_update(None, "cache_size", if purpose == Purpose::Write { -8_192 } else { -1_024 })?;
        inner.pragma_update(None, "temp_store", "memory")?;
        let is_memory = options.location == Location::Memory;
        if purpose == Purpose::Write {
            configure_writer(&inner, options)?;
        }
        let begin = match purpose {
            Purpose::Write => "begin immediate",
            Purpose::Read => "begin",
        };
        Ok(Self { inner, begin, is_memory, checkpointer })
    }

    fn control(&self, sql: &str) -> Result<(), DbError> {
        self.inner.prepare_cached(sql)?.execute([]).map(drop).map_err(DbError::from)
    }
}

fn configure_writer(inner: &Sqlite3, options: &SqliteOptions) -> Result<(), DbError> {
    // A file without a page needs no journal to be rolled back from; making and removing one costs three syncs.
    if inner.pragma_query_value(None, "page_count", |row| row.get::<_, i64>(0))? == 0 {
        inner.pragma_update_and_check(None, "journal_mode", "memory", |_| Ok(()))?;
    }
    // Answers with the mode that it could set.
    let mode: String = inner.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if options.location != Location::Memory && mode != "wal" {
        return Err(DbError::Unavailable(format!("the file does not allow a write-ahead log, only {mode}")));
    }
    let synchronous = match options.durability {
        Durability::Full => "full",
        Durability::Normal => "normal",
    };
    inner.pragma_update(None, "synchronous", synchronous)?;
    if let Some(bytes) = options.max_bytes {
        let page: u64 = inner.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = (bytes / page.max(1)).max(1);
        inner.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    checkpoint::watch(inner);
    Ok(())
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        let message = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation) => Self::Conflict(message),
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::OutOfMemory
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::FileLockingProtocolFailed,
            ) => Self::Unavailable(message),
            _ => Self::Corrupt(message),
        }
    }
}

impl ToSql for Val<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(n) => ValueRef::Integer(*n),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn cell(value: ValueRef<'_>) -> Result<Cell, DbError> {
    Ok(match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(n) => Cell::Int(n),
        ValueRef::Text(text) => {
            let text = std::str::from_utf8(text).map_err(|error| DbError::Corrupt(error.to_string()))?;
            Cell::Text(text.to_owned())
        }
        ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
        ValueRef::Real(_) => return Err(DbError::Corrupt("a column holds a fraction".into())),
    })
}

impl Db for SqliteConnection {
    fn query(&mut self, sql: &str, values: &[Val<'_>]) -> Result<Vec<Row>, DbError> {
        let mut statement = self.inner.prepare_cached(sql)?;
        let columns = statement.column_count();
        let mut found = statement.query(params_from_iter(values))?;
        let mut rows = Vec::new();
        while let Some(row) = found.next()? {
            let cells = (0..columns).map(|column| cell(row.get_ref(column)?)).collect::<Result<_, DbError>>()?;
            rows.push(Row::new(cells));
        }
        Ok(rows)
    }

    fn spans(&mut self, sql: &str, values: &[Val<'_>], each: &mut EachSpan<'_>) -> Result<(), DbError> {
        let mut statement = self.inner.prepare_cached(sql)?;
        let mut found = statement.query(params_from_iter(values))?;
        while let Some(row) = found.next()? {
            let (first, next) = (unsigned(row.get(0)?)?, unsigned(row.get(1)?)?);
            let text = row.get_ref(2)?.as_str().map_err(|error| DbError::Corrupt(error.to_string()))?;
            if !each(first, next, text) {
                break;
            }
        }
        Ok(())
    }

    fn execute(&mut self, sql: &str, values: &[Val<'_>]) -> Result<u64, DbError> {
        let changed = self.inner.prepare_cached(sql)?.execute(params_from_iter(values))?;
        Ok(changed as u64)
    }

    fn script(&mut self, sql: &str) -> Result<(), DbError> {
        Ok(self.inner.execute_batch(sql)?)
    }

    fn schema_version(&mut self) -> Result<i64, DbError> {
        let table = "select 1 from sqlite_master where type = 'table' and name = 'schema_versions'";
        if self.first(table, &[])?.is_none() {
            return Ok(0);
        }
        let newest = self.first("select coalesce(max(version), 0) from schema_versions", &[])?;
        newest.map_or(Ok(0), |mut row| row.int())
    }

    fn migrations(&self) -> &'static [&'static str] {
        MIGRATIONS
    }
}

impl Connection for SqliteConnection {
    fn begin(&mut self) -> Result<(), DbError> {
        self.control(self.begin)
    }

    fn commit(&mut self) -> Result<(), DbError> {
        self.control("commit")
    }

    fn rollback(&mut self) {
        if !self.inner.is_autocommit()
            && let Err(error) = self.control("rollback")
        {
            tracing::warn!(%error, "a transaction could not be rolled back");
        }
    }

    fn savepoint(&mut self) -> Result<(), DbError> {
        self.control("savepoint op")
    }

    fn release(&mut self) -> Result<(), DbError> {
        self.control("release op")
    }

    fn undo(&mut self) -> Result<(), DbError> {
        self.control("rollback to op")?;
        self.control("release op")
    }

    fn is_lost(&self) -> bool {
        self.inner.is_autocommit()
    }

    fn is_only_copy(&self) -> bool {
        self.is_memory
    }

    fn tidy(&mut self) {
        if let Some(checkpointer) = &self.checkpointer {
            checkpointer.after_commit(&self.inner);
        }
    }
}
