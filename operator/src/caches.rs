//! Watches of one scope (a namespace, or all), the caches that they fill, and who must look when something changes.
//! All references stay in a namespace, so a scope needs nothing of another.

use std::fmt::Debug;
use std::sync::Arc;

use cadre_crds::common::conditions::{FINISHED, is_true};
use cadre_crds::{agent::Agent, model::Model, run::Run, sandbox::Sandbox};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::driver::Guarded;
use crate::feed::state::{Name, Subject};
use crate::objects::labels;
use crate::pods::{self, Pods};
use crate::written::Written;

/// Objects of one kind that must be looked at.
pub type Receiver<K> = UnboundedReceiver<ObjectRef<Guarded<K>>>;

/// Puts objects of one kind into their controller's queue.
#[derive(Debug, Clone)]
pub struct Queue<K: Resource<DynamicType = ()>>(UnboundedSender<ObjectRef<Guarded<K>>>);

impl<K: Resource<DynamicType = ()>> Queue<K> {
    fn new() -> (Self, Receiver<K>) {
        let (sender, receiver) = unbounded_channel();
        (Self(sender), receiver)
    }

    /// Adds one.
    pub fn push(&self, namespace: &str, name: &str) {
        // A closed queue means that the controller stops.
        let _ = self.0.send(ObjectRef::new(name).within(namespace));
    }

    fn push_meta(&self, meta: &ObjectMeta) {
        self.push(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    }

    fn push_all(&self, store: &Store<Guarded<K>>)
    where
        K: Clone + 'static,
    {
        store.state().iter().for_each(|object| self.push_meta(object.meta()));
    }
}

/// The caches of a scope.
pub struct Caches {
    /// Models.
    pub models: Store<Guarded<Model>>,
    /// Agents.
    pub agents: Store<Guarded<Agent>>,
    /// Runs.
    pub runs: Store<Guarded<Run>>,
    /// Sandboxes.
    pub sandboxes: Store<Guarded<Sandbox>>,
    /// Network policies that the operator made.
    pub policies: Store<NetworkPolicy>,
    /// Service accounts that the operator made.
    pub accounts: Store<ServiceAccount>,
    /// Volume claims that the operator made.
    pub claims: Store<PersistentVolumeClaim>,
    /// Pods that the operator made.
    pub pods: Pods,
    /// What the operator wrote and the caches may lack.
    pub written: Written,
    queues: Queues,
    namespace: Option<String>,
}

struct Queues {
    models: Queue<Model>,
    agents: Queue<Agent>,
    runs: Queue<Run>,
    sandboxes: Queue<Sandbox>,
    /// Run objects that were deleted before their status told an end.
    deleted_runs: UnboundedSender<ObjectMeta>,
}

/// The other ends of the queues.
pub struct Receivers {
    /// Models.
    pub models: Receiver<Model>,
    /// Agents.
    pub agents: Receiver<Agent>,
    /// Runs.
    pub runs: Receiver<Run>,
    /// Sandboxes.
    pub sandboxes: Receiver<Sandbox>,
    /// Run objects that were deleted before their status told an end.
    pub deleted_runs: UnboundedReceiver<ObjectMeta>,
}

/// Starts the watches of a scope.
pub fn start(
    client: &Client,
    namespace: Option<String>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<Caches>, Receivers) {
    let (model_queue, models) = Queue::new();
    let (agent_queue, agents) = Queue::new();
    let (run_queue, runs) = Queue::new();
    let (sandbox_queue, sandboxes) = Queue::new();
    let (deleted_queue, deleted_runs) = unbounded_channel();
    let (model_store, model_writer) = reflector::store();
    let (agent_store, agent_writer) = reflector::store();
    let (run_store, run_writer) = reflector::store();
    let (sandbox_store, sandbox_writer) = reflector::store();
    let (policy_store, policy_writer) = reflector::store();
    let (account_store, account_writer) = reflector::store();
    let (claim_store, claim_writer) = reflector::store();
    let caches = Arc::new(Caches {
        models: model_store,
        agents: agent_store,
        runs: run_store,
        sandboxes: sandbox_store,
        policies: policy_store,
        accounts: account_store,
        claims: claim_store,
        pods: Pods::default(),
        written: Written::default(),
        queues: Queues {
            models: model_queue,
            agents: agent_queue,
            runs: run_queue,
            sandboxes: sandbox_queue,
            deleted_runs: deleted_queue,
        },
        namespace: namespace.clone(),
    });
    let mut watches = Watches { client, namespace: namespace.as_deref(), caches: &caches, tasks, stop };
    watches.own(model_writer, strip_meta, Caches::model_changed);
    watches.own(agent_writer, strip_meta, Caches::agent_changed);
    watches.own(run_writer, strip_run, Caches::run_changed);
    watches.own(sandbox_writer, strip_meta, Caches::sandbox_changed);
    watches.child(policy_writer);
    watches.child(account_writer);
    watches.child(claim_writer);
    watches.pods();
    (caches, Receivers { models, agents, runs, sandboxes, deleted_runs })
}

struct Watches<'a> {
    client: &'a Client,
    namespace: Option<&'a str>,
    caches: &'a Arc<Caches>,
    tasks: &'a mut JoinSet<()>,
    stop: &'a CancellationToken,
}

impl Watches<'_> {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        match self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Watches a kind of ours.
    fn own<K>(
        &mut self,
        mut writer: Writer<Guarded<K>>,
        strip: fn(&mut Guarded<K>),
        changed: fn(&Caches, &Event<Guarded<K>>),
    ) where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let caches = self.caches.clone();
        let take = move |event: Event<Guarded<K>>| {
            writer.apply_watcher_event(&event);
            changed(&caches, &event);
        };
        self.tasks.spawn(watch(self.api(), watcher::Config::default(), strip, take, self.stop.clone()));
    }

    /// Watches what the operator made.
    fn child<K>(&mut self, mut writer: Writer<K>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let caches = self.caches.clone();
        let take = move |event: Event<K>| {
            writer.apply_watcher_event(&event);
            match &event {
                Event::Apply(child) | Event::Delete(child) => {
                    caches.written.seen(child);
                    caches.child_changed(child.meta());
                }
                Event::InitDone => {
                    caches.written.all_seen();
                    caches.queues.sandboxes.push_all(&caches.sandboxes);
                }
                Event::Init | Event::InitApply(_) => {}
            }
        };
        let strip = |child: &mut K| child.meta_mut().managed_fields = None;
        self.tasks.spawn(watch(self.api(), managed(), strip, take, self.stop.clone()));
    }

    fn pods(&mut self) {
        let caches = self.caches.clone();
        let take = move |event: Event<Pod>| {
            for sandbox in caches.pods.apply(event) {
                caches.queues.sandboxes.push(&sandbox.namespace, &sandbox.name);
            }
        };
        self.tasks.spawn(watch(self.api(), managed(), pods::strip, take, self.stop.clone()));
    }
}

fn managed() -> watcher::Config {
    watcher::Config::default().labels(labels::MANAGED)
}

async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    strip: impl FnMut(&mut K) + Send,
    mut take: impl FnMut(Event<K>) + Send,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = std::pin::pin!(watcher(api, config).modify(strip).default_backoff());
    while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
        match event {
            Ok(event) => take(event),
            Err(error) => tracing::warn!(%error, kind = %K::kind(&()), "a watch was interrupted"),
        }
    }
}

fn strip_meta<K: Resource>(object: &mut Guarded<K>) {
    object.meta_mut().managed_fields = None;
}

/// The input of a run that has ended is not read any more, and may be large.
fn strip_run(run: &mut Guarded<Run>) {
    strip_meta(run);
    if let Ok(run) = &mut run.0
        && run.status.as_ref().is_some_and(|status| status.completion_time.is_some())
    {
        run.spec.input.text = None;
        run.spec.input.parts = None;
        run.spec.input.json = None;
    }
}

impl Caches {
    /// Waits until everything is cached.
    pub async fn wait_until_ready(&self) {
        // A store that is dropped belongs to a watch that was stopped.
        let _ = futures::join!(
            self.models.wait_until_ready(),
            self.agents.wait_until_ready(),
            self.runs.wait_until_ready(),
            self.sandboxes.wait_until_ready(),
            self.policies.wait_until_ready(),
            self.accounts.wait_until_ready(),
            self.claims.wait_until_ready(),
            self.pods.wait_until_ready(),
        );
    }

    /// A Model that can be read.
    #[must_use]
    pub fn model(&self, namespace: &str, name: &str) -> Option<Model> {
        self.models.get(&ObjectRef::new(name).within(namespace)).and_then(|model| model.0.as_ref().ok().cloned())
    }

    /// Whether there is such an Agent, readable or not.
    #[must_use]
    pub fn has_agent(&self, namespace: &str, name: &str) -> bool {
        self.agents.get(&ObjectRef::new(name).within(namespace)).is_some()
    }

    /// A change in what the API server tells.
    pub fn told(&self, subject: &Subject) {
        match subject {
            Subject::Model(name) => self.if_inside(name, |namespace, name| self.queues.models.push(namespace, name)),
            Subject::Agent(name) => self.if_inside(name, |namespace, name| self.queues.agents.push(namespace, name)),
            Subject::Run(name) => self.if_inside(name, |namespace, name| self.queues.runs.push(namespace, name)),
            Subject::Sandbox(name) => {
                self.if_inside(name, |namespace, name| self.queues.sandboxes.push(namespace, name));
            }
        }
    }

    /// Whether the scope has a namespace.
    #[must_use]
    pub fn covers(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace)
    }

    fn if_inside(&self, name: &Name, push: impl FnOnce(&str, &str)) {
        if self.covers(&name.namespace) {
            push(&name.namespace, &name.name);
        }
    }

    /// Looks at everything again.
    pub fn look_at_all(&self) {
        self.queues.models.push_all(&self.models);
        self.queues.agents.push_all(&self.agents);
        self.queues.runs.push_all(&self.runs);
        self.queues.sandboxes.push_all(&self.sandboxes);
    }

    fn model_changed(&self, event: &Event<Guarded<Model>>) {
        match event {
            Event::Apply(model) | Event::Delete(model) => {
                self.queues.models.push_meta(model.meta());
                let (namespace, name) = (model.namespace(), model.name_any());
                let uses = |agent: &Guarded<Agent>| {
                    agent.namespace() == namespace
                        && agent.0.as_ref().is_ok_and(|agent| agent.spec.model_ref.name == name)
                };
                self.agents.state_filter(uses).iter().for_each(|agent| self.queues.agents.push_meta(agent.meta()));
            }
            Event::InitDone => {
                self.queues.models.push_all(&self.models);
                self.queues.agents.push_all(&self.agents);
            }
            Event::Init | Event::InitApply(_) => {}
        }
    }

    fn agent_changed(&self, event: &Event<Guarded<Agent>>) {
        match event {
            Event::Apply(agent) | Event::Delete(agent) => {
                self.queues.agents.push_meta(agent.meta());
                let (namespace, name) = (agent.namespace(), agent.name_any());
                let waits = |run: &Guarded<Run>| {
                    run.namespace() == namespace
                        && run.0.as_ref().is_ok_and(|run| run.spec.target.name == name && is_unsubmitted(run))
                };
                self.runs.state_filter(waits).iter().for_each(|run| self.queues.runs.push_meta(run.meta()));
            }
            Event::InitDone => {
                self.queues.agents.push_all(&self.agents);
                self.queues.runs.push_all(&self.runs);
            }
            Event::Init | Event::InitApply(_) => {}
        }
    }

    fn run_changed(&self, event: &Event<Guarded<Run>>) {
        match event {
            Event::Apply(run) => self.queues.runs.push_meta(run.meta()),
            Event::Delete(run) if has_finished(run) => {}
            Event::Delete(run) => {
                let _ = self.queues.deleted_runs.send(run.meta().clone());
            }
            Event::InitDone => self.queues.runs.push_all(&self.runs),
            Event::Init | Event::InitApply(_) => {}
        }
    }

    fn sandbox_changed(&self, event: &Event<Guarded<Sandbox>>) {
        match event {
            Event::Apply(sandbox) => self.queues.sandboxes.push_meta(sandbox.meta()),
            Event::InitDone => self.queues.sandboxes.push_all(&self.sandboxes),
            Event::Init | Event::InitApply(_) | Event::Delete(_) => {}
        }
    }

    /// A child: its Sandbox looks, or all of its namespace when they share it.
    fn child_changed(&self, meta: &ObjectMeta) {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        match meta.labels.as_ref().and_then(|labels| labels.get(labels::SANDBOX)) {
            Some(sandbox) => self.queues.sandboxes.push(namespace, sandbox),
            None => {
                let near = |sandbox: &Guarded<Sandbox>| sandbox.meta().namespace.as_deref() == Some(namespace);
                self.sandboxes
                    .state_filter(near)
                    .iter()
                    .for_each(|sandbox| self.queues.sandboxes.push_meta(sandbox.meta()));
            }
        }
    }
}

/// Whether a Run's status tells its end: nothing is left to be done for it.
fn has_finished(run: &Guarded<Run>) -> bool {
    let status = run.0.as_ref().ok().and_then(|run| run.status.as_ref());
    status.is_some_and(|status| is_true(&status.conditions, FINISHED))
}

/// Whether a Run has not become a run yet.
fn is_unsubmitted(run: &Run) -> bool {
    run.status.as_ref().is_none_or(|status| status.run_id.is_none() && status.completion_time.is_none())
}
