//! The API server's view of runs, credentials, load and isolation: kept here, so that reconciles only look.

pub mod client;
pub mod follow;
pub mod state;
