//! The user port over a real record and a scripted worker in this process.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that can't go on fails")]

mod agentos_client;
mod continuing;
mod engine;
mod errors;
mod isolation;
mod local_mode;
mod metrics;
mod openapi;
mod pausing;
mod queue;
mod runs;
mod schema;
mod schemathesis;
mod sessions;
mod shares;
mod streams;
mod support;
