//! Readers: a few connections that never wait for a writer.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::db::{Db, DbError};
use crate::engine::driver::{Connection, Driver, Purpose};
use crate::error::StoreError;

/// Connections for reads.
pub struct Readers<D: Driver> {
    driver: Arc<D>,
    idle: Mutex<Vec<D::Connection>>,
    permits: Arc<Semaphore>,
}

impl<D: Driver> Readers<D> {
    /// At most `count` connections, made when they are needed.
    pub fn new(driver: Arc<D>, count: usize) -> Self {
        Self { driver, idle: Mutex::new(Vec::new()), permits: Arc::new(Semaphore::new(count)) }
    }

    /// Runs a read in one snapshot.
    pub async fn read<T, F>(self: &Arc<Self>, op: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut dyn Db) -> Result<T, DbError> + Send + 'static,
    {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let this = Arc::clone(self);
        let result = tokio::task::spawn_blocking(move || {
            let result = this.read_now(op);
            drop(permit);
            result
        });
        Ok(result.await.map_err(|_| StoreError::Closed)??)
    }

    fn read_now<T>(&self, op: impl FnOnce(&mut dyn Db) -> Result<T, DbError>) -> Result<T, DbError> {
        let mut connection = self.begun()?;
        let value = op(&mut connection);
        connection.rollback();
        if !matches!(value, Err(DbError::Unavailable(_))) && !self.permits.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        value
    }

    /// A connection with a snapshot. Those that were closed while they were idle are dropped.
    fn begun(&self) -> Result<D::Connection, DbError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let is_new = idle.is_none();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.driver.connect(Purpose::Read)?,
            };
            match connection.begin() {
                Ok(()) => return Ok(connection),
                Err(error) if is_new || !connection.is_closed() => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Answers nothing more.
    pub fn close(&self) {
        self.permits.close();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
