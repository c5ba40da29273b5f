//! Specs in, answers out: the resolved picture that both sources share. Pure but for its lock.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use cadre_crds::agent::AgentSpec;
use cadre_crds::model::ModelSpec;
use cadre_crds::resolve::resolve;
use cadre_gateway::ModelConfig;
use cadre_protocol::ids::ComponentRef;
use tokio::sync::watch;

use super::models::model_config;
use super::{CatalogAgent, Resolved};

/// Namespace and name.
pub type Key = (String, String);

/// A spec with its generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Versioned<T> {
    /// `metadata.generation`; for files a counter.
    pub generation: i64,
    /// Spec.
    pub spec: Arc<T>,
}

/// What a source knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Specs {
    /// Agents.
    pub agents: BTreeMap<Key, Versioned<AgentSpec>>,
    /// Models.
    pub models: BTreeMap<Key, Versioned<ModelSpec>>,
}

#[derive(Default)]
struct Picture {
    agents: BTreeMap<ComponentRef, CatalogAgent>,
    models: BTreeMap<Key, Arc<ModelConfig>>,
}

/// The resolved picture.
pub struct Table {
    default_namespace: String,
    picture: RwLock<Picture>,
    changes: watch::Sender<u64>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(default_namespace: &str) -> Self {
        let changes = watch::Sender::new(0);
        Self { default_namespace: default_namespace.to_owned(), picture: RwLock::default(), changes }
    }

    /// Shows other specs from now on.
    pub fn show(&self, specs: &Specs) {
        let picture = draw(&self.default_namespace, specs);
        *self.picture.write().unwrap_or_else(PoisonError::into_inner) = picture;
        self.changes.send_modify(|version| *version += 1);
    }

    /// See [`super::Catalog::agent`].
    #[must_use]
    pub fn agent(&self, component: &ComponentRef) -> Option<CatalogAgent> {
        self.read().agents.get(component).cloned()
    }

    /// See [`super::Catalog::agents`].
    #[must_use]
    pub fn agents(&self) -> Vec<CatalogAgent> {
        self.read().agents.values().cloned().collect()
    }

    /// See [`super::Catalog::model`].
    #[must_use]
    pub fn model(&self, namespace: &str, name: &str) -> Option<Arc<ModelConfig>> {
        self.read().models.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// See [`super::Catalog::models`].
    #[must_use]
    pub fn models(&self) -> Vec<Arc<ModelConfig>> {
        self.read().models.values().cloned().collect()
    }

    /// See [`super::Catalog::changes`].
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn read(&self) -> RwLockReadGuard<'_, Picture> {
        self.picture.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn draw(default_namespace: &str, specs: &Specs) -> Picture {
    let models: BTreeMap<Key, Result<Arc<ModelConfig>, String>> = specs
        .models
        .iter()
        .map(|(key, model)| {
            let config = model_config(&key.0, &key.1, model.generation, &model.spec);
            (key.clone(), config.map(Arc::new))
        })
        .collect();
    let agents = specs.agents.iter().map(|(key, agent)| {
        let agent = catalog_agent(default_namespace, key, &agent.spec, specs, &models);
        (agent.component.clone(), agent)
    });
    Picture {
        agents: agents.collect(),
        models: models.into_iter().filter_map(|(key, config)| Some((key, config.ok()?))).collect(),
    }
}

fn catalog_agent(
    default_namespace: &str,
    (namespace, name): &Key,
    spec: &AgentSpec,
    specs: &Specs,
    models: &BTreeMap<Key, Result<Arc<ModelConfig>, String>>,
) -> CatalogAgent {
    let component = ComponentRef::agent(namespace, name);
    let key = (namespace.clone(), spec.model_ref.name.clone());
    let model = specs.models.get(&key).map(|model| &*model.spec);
    let resolved = resolve(&component, default_namespace, spec, model).map_err(|unresolved| unresolved.message());
    let state = resolved.and_then(|snapshot| match models.get(&key) {
        Some(Ok(model)) => {
            let revision = snapshot.revision();
            Ok(Resolved { snapshot: Arc::new(snapshot), revision, model: model.clone() })
        }
        Some(Err(problem)) => Err(format!("Model {:?} can't be used: {problem}", key.1)),
        None => Err(format!("Model {:?} does not exist in this namespace", key.1)),
    });
    CatalogAgent {
        api_id: component.api_id(default_namespace),
        display_name: spec.display_name.clone().unwrap_or_else(|| name.clone()),
        description: spec.description.clone(),
        component,
        state,
    }
}
