//! Types that cross a boundary between Cadre's parts: API server, agent pod, operator and CLI.
//!
//! Owns names, shapes and their validation. Must not do IO, read a clock or know a Kubernetes type.

pub mod agent;
pub mod event;
pub mod exec;
pub mod feed;
pub mod ids;
pub mod journal;
pub mod message;
pub mod model;
pub mod money;
pub mod nesting;
pub mod problem;
pub mod requirement;
pub mod run;
pub mod tool;
pub mod worker;
