//! The link to the API server's worker port: one WebSocket that is dialled for ever, and the engine's ports over it.
//!
//! Owns connections, what is unacknowledged, and which calls are open. Must not know what a run does.

mod batches;
pub mod connection;
pub mod dial;
pub mod hub;
pub mod ports;
pub mod state;
