//! What the operations ask of a database connection, so that they are written once for SQLite and PostgreSQL.
//!
//! Statements use `?1` placeholders and SQL that both databases read alike. Must not know any table.

use serde::de::DeserializeOwned;

use crate::error::StoreError;

/// A failed statement.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DbError {
    /// The database does not answer, is locked, full or broken.
    #[error("{0}")]
    Unavailable(String),
    /// Another writer was faster: the operation is worth another try on its own.
    #[error("{0}")]
    Conflict(String),
    /// A wrong statement, or a row that can't be read.
    #[error("{0}")]
    Corrupt(String),
    /// The schema is newer than this program.
    #[error("schema {found} is newer than {wanted}")]
    TooNew {
        /// Version found.
        found: i64,
        /// Version this program knows.
        wanted: i64,
    },
}

impl From<DbError> for StoreError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Unavailable(message) | DbError::Conflict(message) => Self::Unavailable(message),
            DbError::Corrupt(message) => Self::Corrupt(message),
            DbError::TooNew { found, wanted } => Self::SchemaTooNew { found, wanted },
        }
    }
}

impl From<serde_json::Error> for DbError {
    fn from(error: serde_json::Error) -> Self {
        Self::Corrupt(error.to_string())
    }
}

/// A value to bind.
#[derive(Debug, Clone, Copy)]
pub enum Val<'a> {
    /// NULL.
    Null,
    /// A bigint.
    Int(i64),
    /// A text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
}

impl From<u64> for Val<'_> {
    fn from(n: u64) -> Self {
        // Times, counts and numbers stay far below; a larger one is kept as large as the database can.
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Val<'_> {
    fn from(n: usize) -> Self {
        Self::from(n as u64)
    }
}

impl From<u32> for Val<'_> {
    fn from(n: u32) -> Self {
        Self::Int(i64::from(n))
    }
}

impl From<i64> for Val<'_> {
    fn from(n: i64) -> Self {
        Self::Int(n)
    }
}

impl From<bool> for Val<'_> {
    fn from(yes: bool) -> Self {
        Self::Int(i64::from(yes))
    }
}

impl<'a> From<&'a str> for Val<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Val<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Val<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, T: Into<Val<'a>>> From<Option<T>> for Val<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Binds values in order.
macro_rules! vals {
    ($($value:expr),* $(,)?) => { &[$($crate::db::Val::from($value)),*] };
}
pub(crate) use vals;

/// A value that came back.
#[derive(Debug, Clone)]
pub enum Cell {
    /// NULL.
    Null,
    /// A bigint.
    Int(i64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A row, read column by column from the left.
#[derive(Debug)]
pub struct Row(std::vec::IntoIter<Cell>);

impl Row {
    /// A row of these cells.
    #[must_use]
    pub fn new(cells: Vec<Cell>) -> Self {
        Self(cells.into_iter())
    }

    fn next(&mut self) -> Result<Cell, DbError> {
        self.0.next().ok_or_else(|| DbError::Corrupt("a row has too few columns".into()))
    }

    fn wrong<T>(wanted: &str, cell: &Cell) -> Result<T, DbError> {
        let found = match cell {
            Cell::Null => "null",
            Cell::Int(_) => "a number",
            Cell::Text(_) => "a text",
            Cell::Bytes(_) => "bytes",
        };
        Err(DbError::Corrupt(format!("a column holds {found} instead of {wanted}")))
    }

    /// The next column, a text or NULL.
    pub fn opt_text(&mut self) -> Result<Option<String>, DbError> {
        match self.next()? {
            Cell::Null => Ok(None),
            Cell::Text(text) => Ok(Some(text)),
            other => Self::wrong("a text", &other),
        }
    }

    /// The next column, a text.
    pub fn text(&mut self) -> Result<String, DbError> {
        self.opt_text()?.ok_or_else(|| DbError::Corrupt("a column holds null instead of a text".into()))
    }

    /// The next column, a number or NULL.
    pub fn opt_int(&mut self) -> Result<Option<i64>, DbError> {
        match self.next()? {
            Cell::Null => Ok(None),
            Cell::Int(n) => Ok(Some(n)),
            other => Self::wrong("a number", &other),
        }
    }

    /// The next column, a number.
    pub fn int(&mut self) -> Result<i64, DbError> {
        self.opt_int()?.ok_or_else(|| DbError::Corrupt("a column holds null instead of a number".into()))
    }

    /// The next column, a number ≥ 0 or NULL.
    pub fn opt_u64(&mut self) -> Result<Option<u64>, DbError> {
        self.opt_int()?.map(unsigned).transpose()
    }

    /// The next column, a number ≥ 0.
    pub fn u64(&mut self) -> Result<u64, DbError> {
        unsigned(self.int()?)
    }

    /// The next column, a number that fits.
    pub fn u32(&mut self) -> Result<u32, DbError> {
        u32::try_from(self.int()?).map_err(|_| DbError::Corrupt("a number is out of range".into()))
    }

    /// The next column, 0 or 1.
    pub fn bool(&mut self) -> Result<bool, DbError> {
        Ok(self.int()? != 0)
    }

    /// The next column, bytes.
    pub fn bytes(&mut self) -> Result<Vec<u8>, DbError> {
        match self.next()? {
            Cell::Bytes(bytes) => Ok(bytes),
            other => Self::wrong("bytes", &other),
        }
    }

    /// The next column, an identifier.
    pub fn id<T: TryFrom<String>>(&mut self) -> Result<T, DbError> {
        T::try_from(self.text()?).map_err(|_| DbError::Corrupt("a column holds no valid identifier".into()))
    }

    /// The next column, an identifier or NULL.
    pub fn opt_id<T: TryFrom<String>>(&mut self) -> Result<Option<T>, DbError> {
        let text = self.opt_text()?;
        text.map(|text| T::try_from(text).map_err(|_| DbError::Corrupt("a column holds no valid identifier".into())))
            .transpose()
    }

    /// The next column, JSON.
    pub fn json<T: DeserializeOwned>(&mut self) -> Result<T, DbError> {
        Ok(serde_json::from_str(&self.text()?)?)
    }

    /// The next column, JSON or NULL.
    pub fn opt_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>, DbError> {
        Ok(self.opt_text()?.map(|text| serde_json::from_str(&text)).transpose()?)
    }
}

/// A number that can't be negative.
pub fn unsigned(n: i64) -> Result<u64, DbError> {
    u64::try_from(n).map_err(|_| DbError::Corrupt("a number is negative".into()))
}

/// Takes a row of two numbers and a text; answers whether more are wanted.
pub type EachSpan<'a> = dyn FnMut(u64, u64, &str) -> bool + 'a;

/// A connection with an open transaction.
pub trait Db {
    /// Rows of a statement.
    fn query(&mut self, sql: &str, values: &[Val<'_>]) -> Result<Vec<Row>, DbError>;

    /// Rows of two numbers and a text, looked at where they lie, until `each` answers false.
    fn spans(&mut self, sql: &str, values: &[Val<'_>], each: &mut EachSpan<'_>) -> Result<(), DbError>;

    /// Runs a statement; answers the number of rows that changed.
    fn execute(&mut self, sql: &str, values: &[Val<'_>]) -> Result<u64, DbError>;

    /// Runs a statement whose outcome only matters if it fails. Its error may come with a later statement of the operation.
    fn write(&mut self, sql: &str, values: &[Val<'_>]) -> Result<(), DbError> {
        self.execute(sql, values).map(drop)
    }

    /// Runs statements of a migration.
    fn script(&mut self, sql: &str) -> Result<(), DbError>;

    /// Newest migration that was applied; 0 when there is none.
    fn schema_version(&mut self) -> Result<i64, DbError>;

    /// This database's migrations, oldest first; the first has number 1.
    fn migrations(&self) -> &'static [&'static str];

    /// Keeps other replicas from migrating at the same time.
    fn lock_schema(&mut self) -> Result<(), DbError> {
        Ok(())
    }

    /// Keeps other writers off a session's row until the transaction ends. Nothing where there is one writer.
    fn lock_session(&mut self, _session_id: &str) -> Result<(), DbError> {
        Ok(())
    }

    /// The same for a run's row.
    fn lock_run(&mut self, _run_id: &str) -> Result<(), DbError> {
        Ok(())
    }

    /// Keeps other writers that lock the same name waiting until the transaction ends. Nothing where there is one writer.
    fn lock_name(&mut self, _name: &str) -> Result<(), DbError> {
        Ok(())
    }

    /// The same for a worker's row.
    fn lock_worker(&mut self, _worker_id: &str) -> Result<(), DbError> {
        Ok(())
    }

    /// Keeps others from giving slots until the transaction ends. Called before any other lock of the transaction.
    fn lock_slots(&mut self) -> Result<(), DbError> {
        Ok(())
    }

    /// A text in lower case, as far as it is ASCII: whatever the database's locale says of other letters.
    fn ascii_lower(&self, column: &str) -> String {
        format!("lower({column})")
    }

    /// The database's time, in Unix milliseconds.
    fn now_ms(&mut self) -> Result<u64, DbError> {
        Ok(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default())
    }

    /// Notes that a run has new events, for other replicas. They are told after the commit.
    fn note_change(&mut self, _run_id: &str) {}

    /// The first row of a statement.
    fn first(&mut self, sql: &str, values: &[Val<'_>]) -> Result<Option<Row>, DbError> {
        Ok(self.query(sql, values)?.into_iter().next())
    }
}
