//! Runs of an agent.

pub mod all;
mod answers;
pub mod cancel;
pub mod checkpoints;
pub mod continuing;
pub mod create;
pub mod get;
pub mod list;
pub mod lookup;
pub mod media;
pub mod request;
pub mod resume;
