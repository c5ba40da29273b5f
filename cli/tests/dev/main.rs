//! `cadre dev` with real workers, real exec-servers and the real command line.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod approvals;
mod continuing;
mod failures;
mod quickstart;
mod reload;
mod stops;
mod support;
