//! [`Workers`] on top of writers and readers.

use std::time::Duration;

use async_trait::async_trait;
use cadre_protocol::ids::{SessionId, WorkerId};

use crate::db::{Db, DbError};
use crate::engine::driver::Driver;
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::ops::workers;
use crate::workers::{Departure, Isolation, PlacedRun, ReplicaId, WorkerRow, Workers};

impl<D: Driver> SqlStore<D> {
    /// Writes what belongs to no session.
    async fn write_common<T, F>(&self, op: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut dyn Db) -> Result<T, DbError> + Send + 'static,
    {
        self.writer(0)?.write(0, op).await
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait]
impl<D: Driver> Workers for SqlStore<D> {
    async fn beat(&self, replica: &ReplicaId) -> Result<(), StoreError> {
        let replica = replica.clone();
        self.write_common(move |db| workers::beat(db, &replica)).await
    }

    async fn register(&self, worker: &WorkerRow) -> Result<(), StoreError> {
        let worker = worker.clone();
        self.write_common(move |db| workers::register(db, &worker)).await
    }

    async fn leave(
        &self,
        worker_id: &WorkerId,
        registration: &str,
        replica: &ReplicaId,
    ) -> Result<Departure, StoreError> {
        let (worker_id, registration, replica) = (worker_id.clone(), registration.to_owned(), replica.clone());
        self.write_common(move |db| workers::leave(db, &worker_id, &registration, &replica)).await
    }

    async fn is_at(&self, worker_id: &WorkerId, registration: &str, replica: &ReplicaId) -> Result<bool, StoreError> {
        let (worker_id, registration, replica) = (worker_id.clone(), registration.to_owned(), replica.clone());
        self.read(move |db| workers::is_at(db, &worker_id, &registration, &replica)).await
    }

    async fn retire(&self, session_id: &SessionId, replica: &ReplicaId, silent: Duration) -> Result<bool, StoreError> {
        let (session, replica) = (session_id.clone(), replica.clone());
        self.write(session_id, move |db| workers::retire(db, &session, &replica, ms(silent))).await
    }

    async fn is_elsewhere(
        &self,
        session_id: &SessionId,
        replica: &ReplicaId,
        silent: Duration,
    ) -> Result<bool, StoreError> {
        let (session_id, replica) = (session_id.clone(), replica.clone());
        self.read(move |db| workers::is_elsewhere(db, &session_id, &replica, ms(silent))).await
    }

    async fn runs_of_worker(&self, worker_id: &WorkerId) -> Result<Vec<PlacedRun>, StoreError> {
        let worker_id = worker_id.clone();
        self.read(move |db| workers::of_worker(db, &worker_id)).await
    }

    async fn runs_at(&self, replica: &ReplicaId) -> Result<Vec<PlacedRun>, StoreError> {
        let replica = replica.clone();
        self.read(move |db| workers::at_replica(db, &replica)).await
    }

    async fn release_lost(&self, replica: &ReplicaId, silent: Duration) -> Result<Vec<PlacedRun>, StoreError> {
        let replica = replica.clone();
        self.write_common(move |db| workers::release_lost(db, &replica, ms(silent))).await
    }

    async fn report_isolation(&self, registration: &str, report: &Isolation) -> Result<(), StoreError> {
        let (registration, report) = (registration.to_owned(), report.clone());
        self.write_common(move |db| workers::isolation(db, &registration, &report)).await
    }

    async fn isolations(&self) -> Result<Vec<Isolation>, StoreError> {
        self.read(workers::isolations).await
    }
}
