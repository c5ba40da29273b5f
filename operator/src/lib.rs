//! The operator: turns Models, Agents, Sandboxes and Runs into pods, policies, submissions and status.
//!
//! Must not run a model, open the database, read a Secret or write a user's `spec`.

pub mod caches;
pub mod conditions;
pub mod config;
pub mod context;
pub mod controllers;
pub mod driver;
pub mod error;
pub mod events;
pub mod feed;
pub mod health;
pub mod leader;
pub mod metrics;
pub mod objects;
pub mod pods;
pub mod run;
pub mod status;
pub mod worker_address;
pub mod written;
