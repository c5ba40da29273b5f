//! The worker's link: one WebSocket a worker, frames in, frames out.
//!
//! Owns the order and the limits of frames. What they mean is the domain's; models and tools are the gateway's. Must not
//! know how a caller was authenticated, nor a database.

pub mod appender;
pub mod binding;
pub mod calls;
pub mod deltas;
pub mod link;
mod meter;
pub mod rate;

use std::sync::Arc;

use cadre_gateway::Gateway;

use crate::domain::Service;
use binding::Bindings;

/// What links share.
#[derive(Clone)]
pub struct WorkerPort {
    /// The domain.
    pub service: Service,
    /// Models and tools.
    pub gateway: Arc<Gateway>,
    /// Which session a caller's worker may serve.
    pub bindings: Arc<dyn Bindings>,
}
