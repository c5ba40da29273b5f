//! Replicas and their workers: what is recorded so that any replica can go on where another one ended.

use std::time::Duration;

use async_trait::async_trait;
use cadre_protocol::ids::{SessionId, WorkerId};

use crate::error::StoreError;
use crate::rows::{Lease, Waiting};

/// A server process on this database.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplicaId(pub String);

impl ReplicaId {
    /// A new random one.
    #[must_use]
    pub fn generate() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }
}

/// A worker process and the replica that it is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRow {
    /// Worker.
    pub worker_id: WorkerId,
    /// The process.
    pub registration: String,
    /// Where it is connected.
    pub replica: ReplicaId,
    /// The session that it serves alone; none for a pooled worker.
    pub session_id: Option<SessionId>,
}

/// What it means that a worker process has left a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// It is lost.
    Lost,
    /// Another process has taken its place: there is nothing to make anew.
    Replaced,
    /// It is connected to another replica, with all it has.
    Moved,
}

/// A running run and who should be executing it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedRun {
    /// The run.
    pub waiting: Waiting,
    /// Its session.
    pub session_id: SessionId,
    /// Its writer.
    pub lease: Lease,
    /// Whether a cancel was asked for.
    pub cancel_requested: bool,
}

/// What a worker has said of its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// Worker.
    pub worker_id: WorkerId,
    /// Whether what must be refused is refused.
    pub isolated: bool,
    /// What was tried.
    pub detail: String,
}

/// Replicas and workers. `silent` is the time without a beat after which a replica counts as dead.
#[async_trait]
pub trait Workers: Send + Sync {
    /// The replica lives.
    async fn beat(&self, replica: &ReplicaId) -> Result<(), StoreError>;

    /// A worker process is connected to a replica. The runs that another process of it had wait for a worker.
    async fn register(&self, worker: &WorkerRow) -> Result<(), StoreError>;

    /// A worker process has left a replica. Unless it has gone to another one, its runs wait for a worker.
    async fn leave(
        &self,
        worker_id: &WorkerId,
        registration: &str,
        replica: &ReplicaId,
    ) -> Result<Departure, StoreError>;

    /// Whether the record has a worker process at this replica.
    async fn is_at(&self, worker_id: &WorkerId, registration: &str, replica: &ReplicaId) -> Result<bool, StoreError>;

    /// Takes an idle session from its worker, so that the worker can be ended. False when a run of it is open, or when
    /// another live replica has its worker: then nothing happens.
    async fn retire(&self, session_id: &SessionId, replica: &ReplicaId, silent: Duration) -> Result<bool, StoreError>;

    /// Whether the session is leased to a worker of another live replica.
    async fn is_elsewhere(
        &self,
        session_id: &SessionId,
        replica: &ReplicaId,
        silent: Duration,
    ) -> Result<bool, StoreError>;

    /// Runs that a worker should be executing.
    async fn runs_of_worker(&self, worker_id: &WorkerId) -> Result<Vec<PlacedRun>, StoreError>;

    /// Runs that a replica's workers should be executing.
    async fn runs_at(&self, replica: &ReplicaId) -> Result<Vec<PlacedRun>, StoreError>;

    /// Releases the runs of workers that no live replica has. `replica` asks; its own workers are there. Answers what
    /// this call has released. Several replicas may call it at once.
    async fn release_lost(&self, replica: &ReplicaId, silent: Duration) -> Result<Vec<PlacedRun>, StoreError>;

    /// Keeps what a worker process says of its network, for as long as it is connected.
    async fn report_isolation(&self, registration: &str, report: &Isolation) -> Result<(), StoreError>;

    /// What workers of all replicas have said of their networks.
    async fn isolations(&self) -> Result<Vec<Isolation>, StoreError>;
}
