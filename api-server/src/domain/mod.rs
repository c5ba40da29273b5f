//! What runs, sessions, leases and streams mean.
//!
//! Takes the store, the catalog and the placement behind their traits. Must not know HTTP or Kubernetes. What only this
//! replica knows ([`board`], [`hub`]) makes things fast; what is right is decided by leases and epochs in the record.

pub mod accept;
mod answering;
pub mod append;
pub mod board;
pub mod boundary;
pub mod budget;
pub mod cancel;
pub mod continuing;
pub mod decisions;
pub mod departure;
pub mod error;
pub mod finish;
pub mod fork_session;
pub mod hub;
pub mod intents;
pub mod isolation;
pub mod jobs;
pub mod keyed;
pub mod lease;
pub mod metrics_daily;
mod patience;
pub mod place;
pub mod recover;
pub mod replicas;
pub mod schema;
pub mod scope;
pub mod seat;
pub mod seen;
pub mod service;
pub mod sessions;
pub mod shares;
pub mod stream;
pub mod submit;
pub mod trace;
pub mod upkeep;
pub mod wait;

pub use error::DomainError;
pub use scope::{RunScope, Writer};
pub use service::{Change, Limits, Parts, Service};
pub use submit::{NewFile, Submit, Submitted};
