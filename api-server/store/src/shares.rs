//! What one namespace may take of what all share, so that one that is busy leaves room for the others.

use cadre_protocol::ids::SessionId;

/// Most that the runs of one namespace may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shares {
    /// Runs that wait; 0 means no limit.
    pub max_queue_depth: u32,
    /// Sessions that run at once, over all replicas; 0 means no limit.
    pub max_running: u32,
}

/// Most sessions that run at once, over all replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotLimits {
    /// Of all namespaces; 0 means no limit.
    pub of_all: u32,
    /// Of each namespace; 0 means no limit.
    pub of_namespace: u32,
}

/// Where bytes are stored, and how many its namespace may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobPlace {
    /// Session.
    pub session_id: SessionId,
    /// Its component's namespace.
    pub namespace: String,
    /// Most bytes of the namespace, over all sessions; 0 means no limit.
    pub max_bytes: u64,
}
