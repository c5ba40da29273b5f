//! The traits on top of writers and readers: leases, blobs, schema.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cadre_protocol::ids::{BlobDigest, Epoch, RunId, SessionId, WorkerId};
use tokio::sync::broadcast;

use crate::db::{Db, DbError};
use crate::engine::driver::{Driver, Purpose};
use crate::engine::merger::Merger;
use crate::engine::readers::Readers;
use crate::engine::writer::Writer;
use crate::error::StoreError;
use crate::ops::allowances::Allowances;
use crate::ops::snapshots::Snapshots;
use crate::ops::{blobs, leases, queries, schema};
use crate::rows::{BlobKey, BlobRange, Change, Lease};
use crate::shares::BlobPlace;
use crate::traits::{Blobs, Changes, Leases, Schema};

/// Most runs whose session is remembered.
const MAX_ORDERS: usize = 65_536;

/// The record in a database of one kind. Clones share everything.
pub struct SqlStore<D: Driver> {
    driver: Arc<D>,
    writers: Vec<Arc<Writer>>,
    readers: Option<Arc<Readers<D>>>,
    /// Numbers of runs' sessions, where there is more than one writer.
    orders: Arc<Mutex<HashMap<RunId, u64>>>,
    pub(crate) snapshots: Arc<Snapshots>,
    /// Runs that may still wait.
    pub(crate) depths: Arc<Allowances>,
    /// Bytes that namespaces may still store.
    pub(crate) bytes: Arc<Allowances>,
    pub(crate) merger: Merger,
}

impl<D: Driver> Clone for SqlStore<D> {
    fn clone(&self) -> Self {
        Self {
            driver: Arc::clone(&self.driver),
            writers: self.writers.clone(),
            readers: self.readers.clone(),
            orders: Arc::clone(&self.orders),
            snapshots: Arc::clone(&self.snapshots),
            depths: Arc::clone(&self.depths),
            bytes: Arc::clone(&self.bytes),
            merger: self.merger.clone(),
        }
    }
}

impl<D: Driver> SqlStore<D> {
    /// Connects and starts the writers. Blocks.
    pub(crate) fn start(driver: D) -> Result<Self, StoreError> {
        let driver = Arc::new(driver);
        let mut writers = Vec::new();
        for _ in 0..driver.writers().max(1) {
            let connection = driver.connect(Purpose::Write)?;
            writers.push(Arc::new(Writer::start(Arc::clone(&driver), connection)?));
        }
        let readers = match driver.readers() {
            0 => None,
            count => Some(Arc::new(Readers::new(Arc::clone(&driver), count))),
        };
        Ok(Self {
            driver,
            writers,
            readers,
            orders: Arc::default(),
            snapshots: Arc::default(),
            depths: Arc::default(),
            bytes: Arc::default(),
            merger: Merger::default(),
        })
    }

    /// The writer of a session's operations.
    pub(crate) fn writer(&self, order: u64) -> Result<&Writer, StoreError> {
        let count = self.writers.len() as u64;
        let index = usize::try_from(order.checked_rem(count).unwrap_or_default()).unwrap_or_default();
        self.writers.get(index).map(AsRef::as_ref).ok_or(StoreError::Closed)
    }

    /// Writes to a session.
    pub(crate) async fn write<T, F>(&self, session_id: &SessionId, op: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut dyn Db) -> Result<T, DbError> + Send + 'static,
    {
        let order = order(session_id);
        self.writer(order)?.write(order, op).await
    }

    /// The number of a run's session.
    pub(crate) async fn order_of(&self, run_id: &RunId) -> Result<u64, StoreError> {
        if self.writers.len() == 1 {
            return Ok(0);
        }
        let known = self.orders.lock().unwrap_or_else(PoisonError::into_inner).get(run_id).copied();
        if let Some(order) = known {
            return Ok(order);
        }
        let wanted = run_id.clone();
        let session_id = self.read(move |db| queries::session_of(db, &wanted)).await?;
        let Some(session_id) = session_id else { return Ok(0) };
        self.remember_order(run_id, &session_id);
        Ok(order(&session_id))
    }

    /// Keeps a run's number, so that it need not be looked up.
    pub(crate) fn remember_order(&self, run_id: &RunId, session_id: &SessionId) {
        if self.writers.len() == 1 {
            return;
        }
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if orders.len() >= MAX_ORDERS {
            orders.clear();
        }
        orders.insert(run_id.clone(), order(session_id));
    }

    /// Reads in one snapshot.
    pub(crate) async fn read<T, F>(&self, op: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Fn(&mut dyn Db) -> Result<T, DbError> + Send + 'static,
    {
        match &self.readers {
            Some(readers) => readers.read(op).await,
            None => self.writer(0)?.write(0, op).await,
        }
    }
}

/// FNV-1a, so that all replicas agree.
pub(crate) fn order(session_id: &SessionId) -> u64 {
    order_of_text(session_id.as_str())
}

/// The same of what belongs to no session.
pub(crate) fn order_of_text(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}

#[async_trait]
impl<D: Driver> Leases for SqlStore<D> {
    async fn acquire(
        &self,
        session_id: &SessionId,
        worker_id: &WorkerId,
        registration: &str,
        at_ms: u64,
    ) -> Result<Epoch, StoreError> {
        let (session, worker_id, registration) = (session_id.clone(), worker_id.clone(), registration.to_owned());
        self.write(session_id, move |db| leases::acquire(db, &session, &worker_id, &registration, at_ms)).await
    }

    async fn lease(&self, session_id: &SessionId) -> Result<Option<Lease>, StoreError> {
        let session_id = session_id.clone();
        self.read(move |db| leases::lease(db, &session_id)).await
    }

    async fn release(&self, session_id: &SessionId, lease: &Lease) -> Result<(), StoreError> {
        let (session, lease) = (session_id.clone(), lease.clone());
        self.write(session_id, move |db| leases::release(db, &session, &lease).map(drop)).await
    }
}

#[async_trait]
impl<D: Driver> Blobs for SqlStore<D> {
    async fn put(&self, place: &BlobPlace, bytes: Vec<u8>) -> Result<Option<BlobKey>, StoreError> {
        let digested = tokio::task::spawn_blocking(move || (BlobDigest::of(&bytes), bytes)).await;
        let (digest, bytes) = digested.map_err(|_| StoreError::Closed)?;
        let key = BlobKey { session_id: place.session_id.clone(), digest };
        let (allowed, digest, in_place, at_ms) = (Arc::clone(&self.bytes), key.digest.clone(), place.clone(), now_ms());
        let op = move |db: &mut dyn Db| blobs::put(db, &allowed, &in_place, &digest, &bytes, at_ms);
        Ok(self.write(&place.session_id, op).await?.then_some(key))
    }

    async fn get(&self, key: &BlobKey, offset: u64, max_bytes: usize) -> Result<Option<BlobRange>, StoreError> {
        let key = key.clone();
        self.read(move |db| blobs::get(db, &key, offset, max_bytes)).await
    }
}

impl<D: Driver> Changes for SqlStore<D> {
    fn changes(&self) -> Option<broadcast::Receiver<Change>> {
        self.driver.changes()
    }

    fn tell(&self, change: Change) {
        self.driver.tell(&change);
    }
}

#[async_trait]
impl<D: Driver> Schema for SqlStore<D> {
    async fn check(&self) -> Result<(), StoreError> {
        self.read(schema::check).await?
    }

    fn newest_schema(&self) -> u32 {
        u32::try_from(self.driver.migrations().len()).unwrap_or(u32::MAX)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        let at_ms = now_ms();
        while self.writer(0)?.write(0, move |db| schema::migrate_one(db, at_ms)).await? {}
        Ok(())
    }

    async fn close(&self) {
        let (writers, readers) = (self.writers.clone(), self.readers.clone());
        let closed = tokio::task::spawn_blocking(move || {
            writers.iter().for_each(|writer| writer.close());
            if let Some(readers) = readers {
                readers.close();
            }
        });
        if closed.await.is_err() {
            tracing::error!("the store could not be closed in order");
        }
    }
}
