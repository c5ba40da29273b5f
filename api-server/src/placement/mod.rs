//! Get me a worker for this session: Sandboxes in a cluster, child processes for `cadre dev`.
//!
//! Owns how workers come to be and to an end. Must not know runs, leases or the link's frames.

pub mod manifest;
pub mod process;
pub mod sandbox;

use async_trait::async_trait;
use cadre_protocol::ids::{ComponentRef, SessionId, WorkerId};
use tokio::sync::broadcast;

/// Which sessions a worker takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serves {
    /// Its own and no other.
    Session(SessionId),
    /// Any: a pooled worker.
    Any,
}

/// What happened to workers, as their makers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacementEvent {
    /// The pod or process has ended: it won't dial in again.
    Ended(WorkerId),
}

/// Why there will be no worker for now.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The place could not be asked for; worth another try.
    #[error("a worker could not be asked for: {0}")]
    Unavailable(String),
    /// The namespace has as many workers as it may: the run waits for the place of another one.
    #[error("waits for {0}")]
    Full(String),
    /// It will never work as it is.
    #[error("no worker can run this session: {0}")]
    Impossible(String),
}

/// A session that needs a worker.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Session.
    pub session_id: SessionId,
    /// Its component.
    pub component: ComponentRef,
}

/// The maker of workers.
#[async_trait]
pub trait Placement: Send + Sync {
    /// Sees to it that a worker dials in. Returns once that is asked for; asking again changes nothing.
    async fn ensure(&self, wanted: &Wanted) -> Result<(), PlacementError>;

    /// A worker was lost: what is wanted from now on is another one, even if that one's pod seems to be there.
    fn lost(&self, worker_id: &WorkerId);

    /// The session's worker is not needed any more.
    async fn retire(&self, session_id: &SessionId, component: &ComponentRef) -> Result<(), PlacementError>;

    /// The session is about to be forgotten: its worker goes, with its files, wherever they are.
    async fn remove(&self, session_id: &SessionId, component: &ComponentRef) -> Result<(), PlacementError>;

    /// What keeps a session from having a worker, in words; none when one is there, on its way or can be asked for.
    fn waits_for(&self, _wanted: &Wanted) -> Option<String> {
        None
    }

    /// Ends of workers.
    fn events(&self) -> broadcast::Receiver<PlacementEvent>;

    /// Whether workers outlive this server: then they get time to dial in again after a restart.
    fn workers_survive(&self) -> bool;
}
