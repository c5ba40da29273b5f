//! Words that all kinds share.

pub mod conditions;
pub mod reasons;
pub mod references;
pub mod schema;
