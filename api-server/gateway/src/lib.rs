//! The gateway: the one place that holds provider keys and the one client that leaves the cluster.
//!
//! Owns the three provider formats, the scripted provider, the `http` tool, the egress rules, and the measuring of
//! calls (usage, cost, times). It takes resolved Models and neutral requests; it must not know a Kubernetes type, the
//! database, or an engine: what an engine sends reaches a provider only after it was parsed and written anew.

mod budget;
mod config;
mod credentials;
mod egress;
mod failure;
mod gateway;
mod hosts;
mod http_tool;
mod models;
mod pricing;
mod retry;
pub mod scripted;
mod upstream;

pub use budget::{Bound, Meter};
pub use cadre_protocol::feed::CredentialState;
pub use config::{Api, AuthConfig, Budget, ModelConfig, Parameters, Provider, Window};
pub use credentials::{Credential, CredentialError, Credentials};
pub use egress::{BuildError, EgressPolicy, Lookup};
pub use gateway::Gateway;
pub use pricing::{Price, PriceError, Pricing};
