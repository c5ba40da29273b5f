//! What runs, sessions, leases and streams mean.
//!
//! Takes the store, the catalog and the placement behind their traits, and a clock. Must not know HTTP or Kubernetes.

pub mod error;
pub mod service;
pub mod submit;

pub use error::DomainError;
pub use service::{Limits, Service};
pub use submit::{NewFile, Submit, Submitted};
