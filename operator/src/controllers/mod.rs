//! One folder a kind: `mod.rs` drives, the other files are steps of it.

pub mod agent;
pub mod model;
pub mod run;
pub mod sandbox;
