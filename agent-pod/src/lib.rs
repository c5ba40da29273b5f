//! The agent pod: the trusted engine, its link to the API server, and the doors to the untrusted exec-server.
//!
//! Owns how a run is carried out. Must not know an HTTP route, a Kubernetes type, the database or a provider's key.
//! Programs use [`service::engine_main`] and [`exec_main::exec_main`].

pub mod alive;
pub mod config;
pub mod engine;
pub mod exec_main;
pub mod exec_source;
pub mod isolation;
pub mod link;
pub mod logs;
pub mod service;
