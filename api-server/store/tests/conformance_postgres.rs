//! The suite on PostgreSQL, with a server that the test starts itself.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[expect(dead_code, reason = "shared with the tests of what only PostgreSQL has")]
mod server;
mod suite;

use std::sync::Arc;

use cadre_store::Store;
use cadre_store::postgres::{PostgresOptions, PostgresStore};
use cadre_store::traits::Schema as _;

/// A schema of its own.
pub struct PostgresSchema {
    url: String,
}

impl PostgresSchema {
    /// An empty, migrated schema.
    pub async fn create() -> Self {
        let schema = Self { url: server::new_schema().await };
        let store = schema.connect();
        store.migrate().await.unwrap();
        store.close().await;
        schema
    }

    fn connect(&self) -> PostgresStore {
        let options =
            PostgresOptions { readers: 2, connect_timeout: server::PATIENCE, ..PostgresOptions::new(&self.url) };
        tokio::task::block_in_place(|| PostgresStore::open(&options)).unwrap()
    }
}

impl suite::Database for PostgresSchema {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.connect())
    }
}

conformance!(crate::PostgresSchema::create());
