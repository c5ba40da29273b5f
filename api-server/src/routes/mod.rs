//! The user API, one endpoint a file: extract, call the domain, map.
//!
//! Paths, fields, codes and event names are AgentOS 3.1's; what we add are fields, never other names. Must not decide
//! what a run means, nor reach the record or the catalog but through the domain.

pub mod agents;
pub mod databases;
pub mod error;
pub mod extract;
pub mod fields;
pub mod form;
pub mod metrics;
pub mod os;
pub mod queue;
pub mod responses;
pub mod runs;
pub mod sessions;
pub mod state;
