//! The gateway against servers that speak the providers' APIs.

mod credentials;
mod egress;
mod failures;
mod providers;
mod scripted;
mod server;
mod support;
