//! Who calls: users by key, workers and the operator by their pods' tokens. Must not decide what they may do with runs.

pub mod actor;
pub mod browser;
pub mod jwks;
pub mod key;
pub mod pod;
pub mod review;
