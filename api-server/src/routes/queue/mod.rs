//! The queue of accepted runs.

pub mod stats;
