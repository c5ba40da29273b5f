//! The resources as the server sees them: agents resolved to snapshots, models resolved for the gateway.
//!
//! Owns the [`Catalog`] trait and its two sources: a cluster's informers and a folder of manifests. Must not know runs.

pub mod folder;
pub mod kube;
pub mod manifest;
pub mod models;
pub mod rules;
pub mod schema;
pub mod secrets;
pub mod table;

use std::sync::Arc;

use cadre_gateway::ModelConfig;
use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::{ComponentRef, Revision};
use tokio::sync::watch;

/// An agent that can run.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The immutable snapshot.
    pub snapshot: Arc<AgentSnapshot>,
    /// Its content address.
    pub revision: Revision,
    /// Its model.
    pub model: Arc<ModelConfig>,
}

/// An agent of the catalog, ready or not.
#[derive(Debug, Clone)]
pub struct CatalogAgent {
    /// Which agent.
    pub component: ComponentRef,
    /// Id that API clients use.
    pub api_id: String,
    /// Name for people.
    pub display_name: String,
    /// What it is for.
    pub description: Option<String>,
    /// What runs are made with, or a sentence that says why there can be none.
    pub state: Result<Resolved, String>,
}

impl CatalogAgent {
    /// Whether runs are accepted.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.is_ok()
    }

    /// The snapshot of a ready agent.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Arc<AgentSnapshot>> {
        self.state.as_ref().ok().map(|resolved| &resolved.snapshot)
    }

    /// Why it is not ready.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.state.as_ref().err().map(String::as_str)
    }
}

/// What there is. Answers come from memory.
pub trait Catalog: Send + Sync {
    /// An agent.
    fn agent(&self, component: &ComponentRef) -> Option<CatalogAgent>;

    /// All agents, by namespace and name.
    fn agents(&self) -> Vec<CatalogAgent>;

    /// A model as it is now.
    fn model(&self, namespace: &str, name: &str) -> Option<Arc<ModelConfig>>;

    /// All models.
    fn models(&self) -> Vec<Arc<ModelConfig>>;

    /// Changes value whenever an answer may have changed.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Whether the first full picture is there.
    fn synced(&self) -> bool;
}
