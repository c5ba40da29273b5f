//! exec-server in a process of its own, asked through the engine's client.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod commands;
mod connection;
mod files;
mod support;
