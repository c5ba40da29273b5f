//! exec-server in a process of its own, asked through the engine's client.

mod commands;
mod connection;
mod files;
mod support;
