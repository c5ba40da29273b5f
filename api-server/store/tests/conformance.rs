//! The suite on SQLite.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod suite;

use std::path::PathBuf;
use std::sync::Arc;

use cadre_store::Store;
use cadre_store::sqlite::{Durability, SqliteStore};
use cadre_store::traits::Schema as _;

/// A file that goes with the test.
pub struct SqliteFile {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl SqliteFile {
    /// An empty, migrated database.
    pub async fn create() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cadre.db");
        let store = SqliteStore::open(&path, Durability::Normal).unwrap();
        store.migrate().await.unwrap();
        Self { _folder: folder, path }
    }
}

impl suite::Database for SqliteFile {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(&self.path, Durability::Normal).unwrap())
    }
}

conformance!(crate::SqliteFile::create());
