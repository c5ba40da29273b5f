//! The native loop: model, tools, journal.
//!
//! Owns the order of things within a run and what a run resumes from. Must not know an HTTP route, a socket or a
//! Kubernetes type: everything outside is one of the traits in [`ports`].

mod approvals;
pub mod bounds;
mod calls;
pub mod context;
pub mod ends;
pub mod journal;
pub mod ports;
pub mod resume;
mod retry;
pub mod rollback;
mod stage;
mod stream;
pub mod template;
pub mod tools;
pub mod turn;
pub mod uploads;

#[cfg(test)]
pub mod fakes;
#[cfg(test)]
mod tests;
