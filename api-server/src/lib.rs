//! The API server: accepts runs, keeps their durable record, gives them to workers and streams what they do.
//!
//! `listen` → `routes` and `worker` → `domain` → store, `catalog` and `placement`. Nothing points back.

pub mod auth;
pub mod catalog;
pub mod cluster;
pub mod config;
pub mod domain;
pub mod listen;
pub mod metrics;
pub mod openapi;
pub mod operator_port;
pub mod placement;
pub mod render;
pub mod routes;
pub mod run;
pub mod runtime;
pub mod streams;
pub mod telemetry;
pub mod worker;
