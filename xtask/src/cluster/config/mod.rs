//! The configuration of every program, as text: pure functions of addresses and paths.

pub mod arguments;
pub mod files;
