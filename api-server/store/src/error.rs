//! What can go wrong with the record itself. Outcomes that callers must tell apart are values, not errors.

/// A failed call. Nothing of it was written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database does not answer, is locked for too long, full or read-only. Answer 503, try again.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The schema is older than this program.
    #[error("the database schema {found} is older than {wanted}; run the migrations")]
    MigrationRequired {
        /// Version found.
        found: i64,
        /// Version this program needs.
        wanted: i64,
    },
    /// The schema is newer than this program.
    #[error("the database schema {found} is newer than this program's {wanted}")]
    SchemaTooNew {
        /// Version found.
        found: i64,
        /// Version this program knows.
        wanted: i64,
    },
    /// What is stored can't be read back, or a statement is wrong: a bug.
    #[error("the database answered something unexpected: {0}")]
    Corrupt(String),
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Static name, as in metrics and logs.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::MigrationRequired { .. } => "migration_required",
            Self::SchemaTooNew { .. } => "schema_too_new",
            Self::Corrupt(_) => "corrupt",
            Self::Closed => "closed",
        }
    }
}
