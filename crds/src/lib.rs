//! Cadre's custom resources: types, defaults, rules and printer columns. The Rust types are the source of the CRDs.
//!
//! Must not do IO, hold a client or run a task.

pub mod agent;
pub mod common;
pub mod manifest;
pub mod model;
pub mod resolve;
pub mod run;
pub mod sandbox;
pub mod schema;
