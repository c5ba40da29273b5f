//! The user port over a real record and a scripted worker in this process.

mod agentos_client;
mod errors;
mod isolation;
mod local_mode;
mod openapi;
mod runs;
mod sessions;
mod streams;
mod support;
