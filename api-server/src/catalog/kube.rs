//! The catalog of a cluster: informers for Models and Agents. A namespace list limits what is watched and what rights
//! are needed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cadre_crds::agent::{Agent, AgentSpec};
use cadre_crds::model::{Model, ModelSpec};
use cadre_gateway::ModelConfig;
use cadre_protocol::ids::ComponentRef;
use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::table::{Key, Specs, Table, Versioned};
use super::{Catalog, CatalogAgent};

/// The catalog.
pub struct KubeCatalog {
    table: Table,
    specs: Mutex<Specs>,
    /// Watches whose first list is not complete yet.
    pending: AtomicUsize,
}

impl KubeCatalog {
    /// Watches these namespaces, or all when there are none, until `stop` fires.
    #[must_use]
    pub fn start(client: Client, namespaces: &[String], default_namespace: &str, stop: CancellationToken) -> Arc<Self> {
        let catalog = Arc::new(Self {
            table: Table::new(default_namespace),
            specs: Mutex::default(),
            pending: AtomicUsize::new(2 * namespaces.len().max(1)),
        });
        for namespace in scopes(namespaces) {
            let agents = events::<Agent>(&client, namespace);
            let models = events::<Model>(&client, namespace);
            tokio::spawn(catalog.clone().follow(agents, namespace.map(str::to_owned), agent_of, stop.clone()));
            tokio::spawn(catalog.clone().follow(models, namespace.map(str::to_owned), model_of, stop.clone()));
        }
        catalog
    }

    /// An agent's spec, for its Sandboxes.
    #[must_use]
    pub fn agent_spec(&self, component: &ComponentRef) -> Option<Arc<AgentSpec>> {
        let key = (component.namespace.clone(), component.name.clone());
        let specs = self.specs.lock().unwrap_or_else(PoisonError::into_inner);
        specs.agents.get(&key).map(|agent| agent.spec.clone())
    }

    async fn follow<K: Resource<DynamicType = ()> + Clone, T: PartialEq>(
        self: Arc<Self>,
        events: impl Stream<Item = Result<Event<DeserializeGuard<K>>, watcher::Error>>,
        namespace: Option<String>,
        of: Kind<K, T>,
        stop: CancellationToken,
    ) {
        futures::pin_mut!(events);
        let mut listed: BTreeMap<Key, Versioned<T>> = BTreeMap::new();
        let mut first = true;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = stop.cancelled() => return,
            };
            match event {
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitApply(object))) => {
                    listed.extend(read(object, of.spec));
                }
                Some(Ok(Event::InitDone)) => {
                    let listed = std::mem::take(&mut listed);
                    self.change(|specs| replace((of.table)(specs), namespace.as_deref(), listed));
                    if std::mem::take(&mut first) {
                        self.pending.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                Some(Ok(Event::Apply(object))) => {
                    let key = key(&object);
                    match read(object, of.spec) {
                        Some((key, spec)) => self.change(|specs| {
                            let table = (of.table)(specs);
                            // Most news are of status alone.
                            let changed = table.get(&key).is_none_or(|old| old.spec != spec.spec);
                            table.insert(key, spec);
                            changed
                        }),
                        // What can't be read must not go on as it was.
                        None => self.change(|specs| (of.table)(specs).remove(&key).is_some()),
                    }
                }
                Some(Ok(Event::Delete(object))) => {
                    self.change(|specs| (of.table)(specs).remove(&key(&object)).is_some());
                }
                Some(Err(error)) => {
                    tracing::warn!(kind = %K::kind(&()), error = %error, "watch failed; it begins anew")
                }
                None => return,
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Specs) -> bool) {
        let mut specs = self.specs.lock().unwrap_or_else(PoisonError::into_inner);
        if change(&mut specs) {
            self.table.show(&specs);
        }
    }
}

/// How a kind is read and where it is kept.
struct Kind<K, T> {
    spec: fn(K) -> T,
    table: fn(&mut Specs) -> &mut BTreeMap<Key, Versioned<T>>,
}

#[expect(non_upper_case_globals, reason = "used like functions")]
const agent_of: Kind<Agent, AgentSpec> = Kind { spec: |agent| agent.spec, table: |specs| &mut specs.agents };
#[expect(non_upper_case_globals, reason = "used like functions")]
const model_of: Kind<Model, ModelSpec> = Kind { spec: |model| model.spec, table: |specs| &mut specs.models };

fn scopes(namespaces: &[String]) -> Vec<Option<&str>> {
    if namespaces.is_empty() { vec![None] } else { namespaces.iter().map(|name| Some(name.as_str())).collect() }
}

fn events<K>(
    client: &Client,
    namespace: Option<&str>,
) -> impl Stream<Item = Result<Event<DeserializeGuard<K>>, watcher::Error>> + use<K>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let api: Api<DeserializeGuard<K>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    watcher(api, watcher::Config::default()).default_backoff()
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn read<K: Resource<DynamicType = ()>, T>(
    object: DeserializeGuard<K>,
    spec: fn(K) -> T,
) -> Option<(Key, Versioned<T>)> {
    let key = key(&object);
    match object.0 {
        Ok(object) => {
            let generation = object.meta().generation.unwrap_or_default();
            Some((key, Versioned { generation, spec: Arc::new(spec(object)) }))
        }
        Err(error) => {
            tracing::warn!(kind = %K::kind(&()), namespace = key.0, name = key.1, error = %error, "object is malformed");
            None
        }
    }
}

/// Puts a complete list in the place of what was known of its namespaces.
fn replace<T: PartialEq>(
    table: &mut BTreeMap<Key, Versioned<T>>,
    namespace: Option<&str>,
    listed: BTreeMap<Key, Versioned<T>>,
) -> bool {
    table.retain(|(at, _), _| namespace.is_some_and(|namespace| namespace != at));
    table.extend(listed);
    true
}

impl Catalog for KubeCatalog {
    fn agent(&self, component: &ComponentRef) -> Option<CatalogAgent> {
        self.table.agent(component)
    }

    fn agents(&self) -> Vec<CatalogAgent> {
        self.table.agents()
    }

    fn model(&self, namespace: &str, name: &str) -> Option<Arc<ModelConfig>> {
        self.table.model(namespace, name)
    }

    fn models(&self) -> Vec<Arc<ModelConfig>> {
        self.table.models()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.table.changes()
    }

    fn synced(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }
}
