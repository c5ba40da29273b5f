//! The three ports: routers and middleware, nothing else.

pub mod admin;
pub mod user;
pub mod worker;
