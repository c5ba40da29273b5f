//! The three ports: routers and middleware, and how connections are served.

pub mod admin;
pub mod rest;
pub mod serve;
pub mod user;
pub mod worker;
