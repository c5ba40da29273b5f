//! Workers of a cluster: a Sandbox for each session, reconciled to a pod by the operator.
//!
//! Owns the Sandboxes of sessions: their names, incarnations and ends; and the proof that a pod is a session's
//! (security rules 3 and 6).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cadre_crds::common::conditions::READY;
use cadre_crds::common::reasons::Reason;
use cadre_crds::sandbox::{OperatingMode, Persistence, Sandbox, SandboxPhase};
use cadre_protocol::ids::{ComponentRef, SessionId, WorkerId};
use cadre_protocol::worker::SandboxIdentity;
use futures::StreamExt;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::manifest::{Proof, desired, sandbox_name};
use super::{Placement, PlacementError, PlacementEvent, Serves, Wanted};
use crate::auth::pod::Caller;
use crate::catalog::Catalog;
use crate::catalog::kube::KubeCatalog;
use crate::worker::binding::{Binding, Bindings, Unbound};

#[path = "sandbox_share.rs"]
mod share;

/// Field manager of what is written here.
const MANAGER: &str = "cadre-api";
/// How long a pod's identity may lag behind the pod.
const IDENTITY_WAIT: Duration = Duration::from_secs(2);

type Key = (String, String);

#[derive(Default)]
struct State {
    known: HashMap<Key, Arc<Sandbox>>,
    /// UIDs of Sandboxes that this process made.
    made: HashSet<String>,
    /// Incarnations whose worker was lost: the next one has to be another.
    lost: HashSet<(Key, u32)>,
    /// Sandboxes that are being asked for.
    asked: HashSet<Key>,
}

impl State {
    /// Forgets a Sandbox that is gone, and all about it. Whether it was known.
    fn forget(&mut self, key: &Key) -> bool {
        self.lost.retain(|(lost, _)| lost != key);
        let Some(sandbox) = self.known.remove(key) else { return false };
        if let Some(uid) = sandbox.uid() {
            self.made.remove(&uid);
        }
        true
    }
}

/// The placement.
pub struct SandboxPlacement {
    client: Client,
    catalog: Arc<KubeCatalog>,
    proof: Proof,
    max_sandboxes: u32,
    state: Mutex<State>,
    /// Watches whose first list is not complete yet.
    pending: AtomicUsize,
    changes: watch::Sender<u64>,
    events: broadcast::Sender<PlacementEvent>,
}

impl SandboxPlacement {
    /// Watches these namespaces, or all when there are none, until `stop` fires. A namespace gets no more than
    /// `max_sandboxes` for sessions at once; 0 means no limit.
    #[must_use]
    pub fn start(
        client: Client,
        namespaces: &[String],
        catalog: Arc<KubeCatalog>,
        proof: Proof,
        max_sandboxes: u32,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let placement = Arc::new(Self {
            client,
            catalog,
            proof,
            max_sandboxes,
            state: Mutex::default(),
            pending: AtomicUsize::new(namespaces.len().max(1)),
            changes: watch::Sender::new(0),
            events: broadcast::Sender::new(1024),
        });
        let scopes = if namespaces.is_empty() { vec![None] } else { namespaces.iter().cloned().map(Some).collect() };
        for namespace in scopes {
            tokio::spawn(placement.clone().follow(namespace, stop.clone()));
        }
        placement
    }

    async fn follow(self: Arc<Self>, namespace: Option<String>, stop: CancellationToken) {
        let api: Api<DeserializeGuard<Sandbox>> = match &namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut listed = HashSet::new();
        let mut first = true;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = stop.cancelled() => return,
            };
            match event {
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitApply(object))) => {
                    listed.insert(key(&object));
                    self.seen(object);
                }
                Some(Ok(Event::InitDone)) => {
                    self.only(namespace.as_deref(), &std::mem::take(&mut listed));
                    if std::mem::take(&mut first) {
                        self.pending.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                Some(Ok(Event::Apply(object))) => self.seen(object),
                Some(Ok(Event::Delete(object))) => self.gone(&key(&object)),
                Some(Err(error)) => tracing::warn!(error = %error, "watch of sandboxes failed; it begins anew"),
                None => return,
            }
        }
    }

    fn seen(&self, object: DeserializeGuard<Sandbox>) {
        let key = key(&object);
        let Ok(sandbox) = object.0 else { return };
        let ended = {
            let mut state = self.state();
            let before = state.known.insert(key.clone(), Arc::new(sandbox.clone()));
            before.is_some_and(|before| pod_has_ended(&before, &sandbox))
        };
        self.changes.send_modify(|version| *version += 1);
        if ended {
            self.tell_end(&key);
        }
    }

    fn gone(&self, key: &Key) {
        if self.state().forget(key) {
            self.tell_end(key);
        }
    }

    /// A complete list: what it lacks is gone.
    fn only(&self, namespace: Option<&str>, listed: &HashSet<Key>) {
        let gone: Vec<Key> = {
            let state = self.state();
            let in_scope = |key: &&Key| namespace.is_none_or(|namespace| namespace == key.0);
            state.known.keys().filter(in_scope).filter(|key| !listed.contains(key)).cloned().collect()
        };
        for key in gone {
            self.gone(&key);
        }
    }

    fn tell_end(&self, (namespace, name): &Key) {
        if let Ok(worker_id) = WorkerId::new(format!("{namespace}/{name}")) {
            let _ = self.events.send(PlacementEvent::Ended(worker_id));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session's Sandbox as it should be; none when it is already.
    fn wanted(&self, wanted: &Wanted, key: &Key) -> Result<Option<Sandbox>, PlacementError> {
        let (known, lost) = {
            let state = self.state();
            let known = state.known.get(key).cloned();
            let lost = known.as_ref().is_some_and(|sandbox| {
                state.lost.contains(&(key.clone(), sandbox.spec.incarnation)) || has_failed(sandbox)
            });
            (known, lost)
        };
        if let Some(cause) = known.as_deref().and_then(evicted_again) {
            return Err(PlacementError::Impossible(format!("its pod was evicted twice for the same cause: {cause}")));
        }
        if let Some(sandbox) = &known
            && !lost
            && sandbox.spec.operating_mode == OperatingMode::Running
        {
            return Ok(None);
        }
        let agent = self.catalog.agent_spec(&wanted.component);
        let snapshot = self.catalog.agent(&wanted.component).and_then(|agent| agent.snapshot().cloned());
        let template = match (&known, &agent) {
            (Some(sandbox), _) => sandbox.spec.template.clone(),
            (None, Some(agent)) => agent.sandbox.as_ref().map(|sandbox| sandbox.template.clone()).unwrap_or_default(),
            (None, None) if !self.catalog.synced() => {
                return Err(PlacementError::Unavailable("the agent is not known yet".to_owned()));
            }
            (None, None) => return Err(PlacementError::Impossible("the agent does not exist any more".to_owned())),
        };
        let tools = match (&known, snapshot) {
            (Some(sandbox), _) => sandbox.spec.tools_container,
            (None, Some(snapshot)) => super::manifest::tools_container(&snapshot),
            (None, None) => cadre_crds::sandbox::ToolsContainer::Enabled,
        };
        let incarnation = super::manifest::incarnation(known.as_ref().map(|sandbox| sandbox.spec.incarnation), lost);
        Ok(Some(desired(wanted, &self.proof, template, tools, incarnation)))
    }

    async fn apply(&self, sandbox: &Sandbox, key: &Key) -> Result<(), PlacementError> {
        let api: Api<Sandbox> = Api::namespaced(self.client.clone(), &key.0);
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(&key.1, &params, &Patch::Apply(sandbox)).await.map_err(refused)?;
        let mut state = self.state();
        state.lost.retain(|(lost, incarnation)| lost != key || *incarnation >= applied.spec.incarnation);
        state.made.extend(applied.uid());
        // The watch may already know more; but an incarnation is asked for once.
        match state.known.get(key) {
            Some(known) if known.spec.incarnation >= applied.spec.incarnation => {}
            _ => drop(state.known.insert(key.clone(), Arc::new(applied))),
        }
        Ok(())
    }

    /// Whether the cluster has refused a Sandbox because another replica was there first: its incarnation only grows. What is
    /// there is then known.
    async fn is_behind(&self, refused_one: &Sandbox, key: &Key) -> Result<bool, PlacementError> {
        let Some(present) = self.look(key).await? else { return Ok(false) };
        let is_ahead = present.spec.incarnation > refused_one.spec.incarnation;
        if is_ahead {
            self.seen(DeserializeGuard(Ok(present)));
        }
        Ok(is_ahead)
    }

    /// Asks for a Sandbox, past what is watched.
    async fn look(&self, key: &Key) -> Result<Option<Sandbox>, PlacementError> {
        let api: Api<Sandbox> = Api::namespaced(self.client.clone(), &key.0);
        api.get_opt(&key.1).await.map_err(refused)
    }

    /// Deletes a Sandbox; its pod, its volume and its policy follow. False when another one has its name.
    async fn delete(&self, key: &Key, uid: Option<String>) -> Result<bool, PlacementError> {
        let api: Api<Sandbox> = Api::namespaced(self.client.clone(), &key.0);
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let is_another = match api.delete(&key.1, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Ok(_) => false,
            Err(kube::Error::Api(status)) if status.code == 404 => false,
            Err(kube::Error::Api(status)) if status.code == 409 => true,
            Err(error) => return Err(refused(error)),
        };
        self.state().forget(key);
        Ok(!is_another)
    }

    /// The Sandbox that a pod belongs to, if all is as it must be.
    fn proven(&self, key: &Key, uid: &str) -> Option<(SessionId, ComponentRef)> {
        let mut state = self.state();
        let sandbox = state.known.get(key)?.clone();
        let status = sandbox.status.as_ref()?;
        let session_id = SessionId::new(sandbox.spec.session_id.clone()?).ok()?;
        let component = ComponentRef::agent(&key.0, &sandbox.spec.agent_ref.as_ref()?.name);
        let ours = sandbox.uid().is_some_and(|uid| state.made.contains(&uid)) || self.proof.holds(&sandbox);
        let current = status.pod_uid.as_deref() == Some(uid) && status.incarnation == Some(sandbox.spec.incarnation);
        if !ours || !current || key.1 != sandbox_name(&component, &session_id) {
            return None;
        }
        state.lost.remove(&(key.clone(), sandbox.spec.incarnation));
        Some((session_id, component))
    }

    /// Whether what a pod could not prove may be proven later.
    fn unbound(&self, key: &Key) -> Unbound {
        if self.pending.load(Ordering::Acquire) > 0 {
            return Unbound::NotYet;
        }
        let known = self.state().known.get(key).cloned();
        let Some(sandbox) = known else { return Unbound::Never("there is no such Sandbox") };
        let told = sandbox
            .status
            .as_ref()
            .is_some_and(|status| status.pod_uid.is_some() && status.incarnation == Some(sandbox.spec.incarnation));
        if told { Unbound::Never("the pod is not the current one of a session's Sandbox") } else { Unbound::NotYet }
    }
}

fn key(object: &DeserializeGuard<Sandbox>) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Whether news tell that the pod that was there has ended. That the pod of an earlier incarnation goes is no news:
/// another was asked for because it is lost.
fn pod_has_ended(before: &Sandbox, after: &Sandbox) -> bool {
    let pod = |sandbox: &Sandbox| sandbox.status.as_ref().and_then(|status| status.pod_uid.clone());
    let (old, new) = (pod(before), pod(after));
    let was_current = before.status.as_ref().and_then(|status| status.incarnation) == Some(after.spec.incarnation);
    was_current && old.is_some() && (new != old || (has_failed(after) && !has_failed(before)))
}

/// Whether the present pod is gone for good. One that can't start yet (`PodFailed`: image, crash loop) heals by itself;
/// another in its place would fail the same way.
fn has_failed(sandbox: &Sandbox) -> bool {
    sandbox.status.as_ref().is_some_and(|status| {
        let waits = status.conditions.iter().any(|c| c.type_ == READY && c.reason == Reason::PodFailed.as_str());
        status.phase == Some(SandboxPhase::Failed) && status.incarnation == Some(sandbox.spec.incarnation) && !waits
    })
}

/// Why the session's pods are evicted, once that has happened twice: the next one would end the same way. It is told of
/// an incarnation and holds until the Sandbox is retired.
fn evicted_again(sandbox: &Sandbox) -> Option<&str> {
    let eviction = sandbox.status.as_ref()?.eviction.as_ref()?;
    let is_present = eviction.incarnation == sandbox.spec.incarnation;
    let is_running = sandbox.spec.operating_mode == OperatingMode::Running;
    (eviction.again && is_present && is_running).then_some(eviction.cause.as_str())
}

fn refused(error: kube::Error) -> PlacementError {
    match error {
        kube::Error::Api(status) if status.code == 422 || status.code == 400 => {
            PlacementError::Impossible(format!("the cluster refuses the Sandbox: {}", status.message))
        }
        kube::Error::Api(status) => PlacementError::Unavailable(status.reason.clone()),
        _ => PlacementError::Unavailable("the cluster does not answer".to_owned()),
    }
}

#[async_trait]
impl Placement for SandboxPlacement {
    async fn ensure(&self, wanted: &Wanted) -> Result<(), PlacementError> {
        let name = sandbox_name(&wanted.component, &wanted.session_id);
        let key = (wanted.component.namespace.clone(), name);
        loop {
            let Some(sandbox) = self.wanted(wanted, &key)? else { return Ok(()) };
            let _reserved = self.reserve(&key)?;
            match self.apply(&sandbox, &key).await {
                Err(PlacementError::Impossible(_)) if self.is_behind(&sandbox, &key).await? => {}
                outcome => return outcome,
            }
        }
    }

    fn waits_for(&self, wanted: &Wanted) -> Option<String> {
        let key = (wanted.component.namespace.clone(), sandbox_name(&wanted.component, &wanted.session_id));
        let state = self.state();
        (!share::has_room(&state, &key, self.max_sandboxes)).then(|| share::told(&key.0, self.max_sandboxes))
    }

    fn lost(&self, worker_id: &WorkerId) {
        let Some((namespace, name)) = worker_id.as_str().split_once('/') else { return };
        let key = (namespace.to_owned(), name.to_owned());
        let mut state = self.state();
        if let Some(incarnation) = state.known.get(&key).map(|sandbox| sandbox.spec.incarnation) {
            state.lost.insert((key, incarnation));
        }
    }

    async fn retire(&self, session_id: &SessionId, component: &ComponentRef) -> Result<(), PlacementError> {
        let key = (component.namespace.clone(), sandbox_name(component, session_id));
        let Some(sandbox) = self.state().known.get(&key).cloned() else { return Ok(()) };
        let api: Api<Sandbox> = Api::namespaced(self.client.clone(), &key.0);
        if sandbox.spec.template.workspace.persistence == Persistence::Volume {
            let patch = serde_json::json!({ "spec": { "operatingMode": OperatingMode::Suspended } });
            api.patch(&key.1, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(refused)?;
            return Ok(());
        }
        self.delete(&key, sandbox.uid()).await.map(drop)
    }

    async fn remove(&self, session_id: &SessionId, component: &ComponentRef) -> Result<(), PlacementError> {
        let key = (component.namespace.clone(), sandbox_name(component, session_id));
        let known = self.state().known.get(&key).cloned();
        let sandbox = match known {
            Some(sandbox) => Some(sandbox),
            // The first list is not complete: what is not known may be there.
            None if self.pending.load(Ordering::Acquire) > 0 => self.look(&key).await?.map(Arc::new),
            None => None,
        };
        let is_its_own = |sandbox: &Arc<Sandbox>| sandbox.spec.session_id.as_deref() == Some(session_id.as_str());
        let Some(sandbox) = sandbox.filter(is_its_own) else { return Ok(()) };
        if self.delete(&key, sandbox.uid()).await? {
            return Ok(());
        }
        Err(PlacementError::Unavailable("another sandbox has taken the session's place".to_owned()))
    }

    fn events(&self) -> broadcast::Receiver<PlacementEvent> {
        self.events.subscribe()
    }

    fn workers_survive(&self) -> bool {
        true
    }
}

#[async_trait]
impl Bindings for SandboxPlacement {
    async fn bind(&self, caller: &Caller, sandbox: Option<&SandboxIdentity>) -> Result<Binding, Unbound> {
        let (Caller::Pod { namespace, uid }, Some(sandbox)) = (caller, sandbox) else {
            return Err(Unbound::Never("a worker must be the pod of a Sandbox"));
        };
        if *namespace != sandbox.namespace {
            return Err(Unbound::Never("the pod is of another namespace than the Sandbox"));
        }
        let key = (sandbox.namespace.clone(), sandbox.name.clone());
        let mut changes = self.changes.subscribe();
        let proven = async {
            loop {
                if let Some(proven) = self.proven(&key, uid) {
                    return Some(proven);
                }
                changes.changed().await.ok()?;
            }
        };
        let proven = tokio::time::timeout(IDENTITY_WAIT, proven).await.ok().flatten();
        let Some((session_id, component)) = proven else { return Err(self.unbound(&key)) };
        let worker_id = WorkerId::new(format!("{}/{}", key.0, key.1));
        let worker_id = worker_id.map_err(|_| Unbound::Never("the Sandbox's name makes no id"))?;
        Ok(Binding { worker_id, serves: Serves::Session(session_id), component: Some(component) })
    }
}

#[cfg(test)]
#[path = "sandbox_tests.rs"]
mod tests;
