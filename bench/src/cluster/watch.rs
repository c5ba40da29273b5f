//! What watches of Sandboxes and pods show, and when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cadre_crds::sandbox::Sandbox;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt as _};
use tokio::task::JoinHandle;

use super::Cluster;

/// Label of agent pods, with the Sandbox's name.
const SANDBOX: &str = "cadre.dev/sandbox";

/// When a session's parts were first seen.
#[derive(Debug, Clone, Default)]
pub struct Marks {
    /// Its Sandbox is there.
    pub sandbox: Option<Instant>,
    /// Its pod is there.
    pub pod: Option<Instant>,
    /// The pod has a node.
    pub scheduled: Option<Instant>,
    /// The kubelet says that the engine's container runs.
    pub reported: Option<Instant>,
    /// UID of the pod.
    pub pod_uid: Option<String>,
}

/// Marks by the Sandbox's name, and Sandboxes by session.
#[derive(Default)]
struct Seen {
    names: HashMap<String, String>,
    marks: HashMap<String, Marks>,
    gone: Vec<String>,
}

/// The watches; dropping them ends them.
pub struct Watches {
    seen: Arc<Mutex<Seen>>,
    changed: Arc<tokio::sync::Notify>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Watches {
    /// Begins to watch.
    pub fn start(cluster: &Cluster) -> Self {
        let (seen, changed) = (Arc::new(Mutex::new(Seen::default())), Arc::new(tokio::sync::Notify::new()));
        let sandboxes: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let tasks = [
            tokio::spawn(follow(sandboxes, watcher::Config::default(), seen.clone(), changed.clone(), sandbox)),
            tokio::spawn(follow(pods, watcher::Config::default().labels(SANDBOX), seen.clone(), changed.clone(), pod)),
        ];
        Self { seen, changed, tasks }
    }

    /// What was seen of a session.
    pub fn marks(&self, session: &str) -> Marks {
        let seen = lock(&self.seen);
        seen.names.get(session).and_then(|name| seen.marks.get(name)).cloned().unwrap_or_default()
    }

    /// Name of a session's Sandbox.
    pub fn sandbox(&self, session: &str) -> Option<String> {
        lock(&self.seen).names.get(session).cloned()
    }

    /// Waits until something about a session is so.
    pub async fn until(&self, session: &str, is: impl Fn(&Marks) -> bool) {
        self.when(|seen| seen.names.get(session).and_then(|name| seen.marks.get(name)).is_some_and(&is)).await;
    }

    /// Waits until a session's pod is gone.
    pub async fn until_gone(&self, session: &str) {
        self.when(|seen| seen.names.get(session).is_none_or(|name| seen.gone.contains(name))).await;
    }

    async fn when(&self, is: impl Fn(&Seen) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if is(&lock(&self.seen)) {
                return;
            }
            changed.await;
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    seen: Arc<Mutex<Seen>>,
    changed: Arc<tokio::sync::Notify>,
    note: impl Fn(&mut Seen, K, bool, Instant),
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut events = std::pin::pin!(watcher(api, config));
    while let Some(event) = events.next().await {
        let now = Instant::now();
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                note(&mut lock(&seen), object, false, now);
            }
            Ok(watcher::Event::Delete(object)) => note(&mut lock(&seen), object, true, now),
            _ => continue,
        }
        changed.notify_waiters();
    }
}

fn sandbox(seen: &mut Seen, sandbox: Sandbox, _deleted: bool, now: Instant) {
    let name = sandbox.name_any();
    if let Some(session) = sandbox.spec.session_id {
        seen.names.insert(session, name.clone());
    }
    seen.marks.entry(name).or_default().sandbox.get_or_insert(now);
}

fn pod(seen: &mut Seen, pod: Pod, deleted: bool, now: Instant) {
    let Some(name) = pod.labels().get(SANDBOX).cloned() else { return };
    if deleted {
        seen.gone.push(name);
        return;
    }
    let marks = seen.marks.entry(name).or_default();
    marks.pod.get_or_insert(now);
    marks.pod_uid = pod.metadata.uid;
    if pod.spec.is_some_and(|spec| spec.node_name.is_some()) {
        marks.scheduled.get_or_insert(now);
    }
    let containers = pod.status.and_then(|status| status.container_statuses);
    let runs = containers
        .into_iter()
        .flatten()
        .any(|container| container.name == "engine" && container.state.is_some_and(|state| state.running.is_some()));
    if runs {
        marks.reported.get_or_insert(now);
    }
}
