//! The gateway against servers that speak the providers' APIs.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod credentials;
mod egress;
mod failures;
mod providers;
mod scripted;
mod server;
mod support;
