//! A server on a loopback port, and workers that speak frames.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cadre_api::auth::key::Authentication;
use cadre_api::auth::pod::{Authenticate, Caller, LocalAuth, Refused};
use cadre_api::catalog::folder::FolderCatalog;
use cadre_api::catalog::secrets::FolderSecrets;
use cadre_api::catalog::{Catalog, CatalogAgent};
use cadre_api::domain::{Limits, Service, Submit, Submitted};
use cadre_api::listen::worker;
use cadre_api::placement::{Placement, PlacementError, PlacementEvent, Serves, Wanted};
use cadre_api::routes::state::UserSettings;
use cadre_api::run::{self, ServerParts};
use cadre_api::telemetry::Traces;
use cadre_api::worker::binding::{Binding, Bindings, Unbound};
use cadre_gateway::{EgressPolicy, Gateway, ModelConfig};
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::{ComponentRef, RunId, SessionId, WorkerId};
use cadre_protocol::journal::{Entry, Record};
use cadre_protocol::run::{RunEnd, RunStatus};
use cadre_protocol::worker::{Assignment, HeldRun, SandboxIdentity};
use cadre_store::Store;
use cadre_store::rows::Principal;
use cadre_store::sqlite::SqliteStore;
use futures::StreamExt;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

#[path = "client.rs"]
mod client;
pub use client::Worker;

/// Longest wait for anything; generous, because machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const MANIFESTS: &str = "
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {name: echo}
spec: {provider: Scripted, model: echo-1, pricing: {input: '1', output: '2'}}
---
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {name: other}
spec: {provider: Scripted, model: other-1}
---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {name: helper}
spec: {modelRef: {name: echo}, displayName: Helper}
---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {name: narrow}
spec: {modelRef: {name: echo}, limits: {maxConcurrentSessions: 1}}
---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {name: broken}
spec: {modelRef: {name: absent}}
";

/// A placement that only notes what it is asked.
pub struct Notes {
    pub wanted: Mutex<Vec<Wanted>>,
    pub retired: Mutex<Vec<SessionId>>,
    pub removed: Mutex<Vec<SessionId>>,
    /// Whether nothing can be removed.
    pub keeps: AtomicBool,
    pub lost: Mutex<Vec<WorkerId>>,
    /// How many sessions may have workers at once.
    pub places: AtomicUsize,
    pub events: broadcast::Sender<PlacementEvent>,
    pub survive: bool,
}

#[async_trait]
impl Placement for Notes {
    async fn ensure(&self, wanted: &Wanted) -> Result<(), PlacementError> {
        if wanted.component.name == "impossible" {
            return Err(PlacementError::Impossible("it never works".to_owned()));
        }
        if let Some(what) = self.waits_for(wanted) {
            return Err(PlacementError::Full(what));
        }
        self.wanted.lock().unwrap().push(wanted.clone());
        Ok(())
    }

    fn lost(&self, worker_id: &WorkerId) {
        self.lost.lock().unwrap().push(worker_id.clone());
    }

    async fn retire(&self, session_id: &SessionId, _component: &ComponentRef) -> Result<(), PlacementError> {
        self.retired.lock().unwrap().push(session_id.clone());
        Ok(())
    }

    async fn remove(&self, session_id: &SessionId, _component: &ComponentRef) -> Result<(), PlacementError> {
        if self.keeps.load(Ordering::Acquire) {
            return Err(PlacementError::Unavailable("nobody answers".to_owned()));
        }
        self.removed.lock().unwrap().push(session_id.clone());
        Ok(())
    }

    fn waits_for(&self, wanted: &Wanted) -> Option<String> {
        let (there, gone) = (self.wanted.lock().unwrap(), self.retired.lock().unwrap());
        let alive: HashSet<_> = there.iter().map(|it| &it.session_id).filter(|id| !gone.contains(id)).collect();
        let is_full = alive.len() >= self.places.load(Ordering::Acquire);
        (is_full && !alive.contains(&wanted.session_id)).then(|| "a sandbox: none is left".to_owned())
    }

    fn events(&self) -> broadcast::Receiver<PlacementEvent> {
        self.events.subscribe()
    }

    fn workers_survive(&self) -> bool {
        self.survive
    }
}

/// Local workers serve any session; one that names a Sandbox serves the session of that name.
struct TestBindings;

#[async_trait]
impl Bindings for TestBindings {
    async fn bind(&self, _caller: &Caller, sandbox: Option<&SandboxIdentity>) -> Result<Binding, Unbound> {
        let Some(sandbox) = sandbox else { return Err(Unbound::Never("no sandbox")) };
        let worker_id = WorkerId::new(format!("{}/{}", sandbox.namespace, sandbox.name)).unwrap();
        let serves = match sandbox.name.strip_prefix("of-") {
            Some(session) => Serves::Session(SessionId::new(session).unwrap()),
            None if sandbox.name == "foreign" => return Err(Unbound::Never("not yours")),
            None => Serves::Any,
        };
        Ok(Binding { worker_id, serves, component: Some(ComponentRef::agent("default", "helper")) })
    }
}

/// Local tokens, and `operator`.
struct TestAuth(LocalAuth);

#[async_trait]
impl Authenticate for TestAuth {
    async fn authenticate(&self, token: &str) -> Result<Caller, Refused> {
        if token == "operator" { Ok(Caller::Operator) } else { self.0.authenticate(token).await }
    }
}

/// A catalog that can be as it is in a server that has just begun: it does not know the Models yet.
struct Catalogue {
    whole: Arc<FolderCatalog>,
    is_new: Arc<AtomicBool>,
}

impl Catalog for Catalogue {
    fn agent(&self, component: &ComponentRef) -> Option<CatalogAgent> {
        self.whole.agent(component)
    }

    fn agents(&self) -> Vec<CatalogAgent> {
        self.whole.agents()
    }

    fn model(&self, namespace: &str, name: &str) -> Option<Arc<ModelConfig>> {
        self.whole.model(namespace, name).filter(|_| self.synced())
    }

    fn models(&self) -> Vec<Arc<ModelConfig>> {
        self.whole.models()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.whole.changes()
    }

    fn synced(&self) -> bool {
        !self.is_new.load(Ordering::Acquire)
    }
}

/// A running server.
pub struct Rig {
    /// Whether its catalog knows no Models yet.
    pub is_new: Arc<AtomicBool>,
    pub service: Service,
    pub notes: Arc<Notes>,
    pub address: SocketAddr,
    pub token: String,
    pub catalog: Arc<FolderCatalog>,
    pub folder: tempfile::TempDir,
    stop: CancellationToken,
}

pub fn limits() -> Limits {
    Limits {
        agent_wait: Duration::from_millis(50),
        reconnect_grace: Duration::from_millis(300),
        sweep_every: Duration::from_millis(500),
        obey_grace: Duration::from_millis(400),
        unused_wait: Duration::from_millis(200),
        ..Limits::default()
    }
}

/// Limits under which nobody is given up, sent away or made to obey, however slow the machine is.
pub fn patient() -> Limits {
    let never = PATIENCE * 100;
    Limits { reconnect_grace: never, obey_grace: never, unused_wait: never, ..limits() }
}

pub async fn rig() -> Rig {
    rig_with(memory().await, limits()).await
}

pub async fn memory() -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().unwrap());
    store.migrate().await.unwrap();
    store
}

pub async fn rig_with(store: Arc<dyn Store>, limits: Limits) -> Rig {
    rig_of(MANIFESTS, store, limits).await
}

pub async fn rig_of(manifests: &str, store: Arc<dyn Store>, limits: Limits) -> Rig {
    rig_made(manifests, store, limits, Traces::default(), false).await
}

pub async fn rig_traced(manifests: &str, store: Arc<dyn Store>, limits: Limits, traces: Traces) -> Rig {
    rig_made(manifests, store, limits, traces, false).await
}

/// A server whose workers outlive it, as those of a cluster do.
pub async fn replica(store: Arc<dyn Store>, limits: Limits) -> Rig {
    replica_of(MANIFESTS, store, limits).await
}

/// The same with other resources.
pub async fn replica_of(manifests: &str, store: Arc<dyn Store>, limits: Limits) -> Rig {
    rig_made(manifests, store, limits, Traces::default(), true).await
}

async fn rig_made(manifests: &str, store: Arc<dyn Store>, limits: Limits, traces: Traces, survive: bool) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("all.yaml"), manifests).unwrap();
    let catalog = FolderCatalog::open(folder.path(), "default").unwrap();
    let policy = EgressPolicy { allow_private: true, ..EgressPolicy::default() };
    let gateway = Arc::new(Gateway::new(policy, Arc::new(FolderSecrets(catalog.clone()))).unwrap());
    let notes = Arc::new(Notes {
        wanted: Mutex::default(),
        retired: Mutex::default(),
        removed: Mutex::default(),
        keeps: AtomicBool::new(false),
        lost: Mutex::default(),
        places: AtomicUsize::new(usize::MAX),
        events: broadcast::Sender::new(16),
        survive,
    });
    let is_new = Arc::new(AtomicBool::new(false));
    let auth = LocalAuth::generate();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let authentication = Authentication::LocalOnly { listen_host: "127.0.0.1".to_owned() };
    let (service, state, _) = run::assemble(ServerParts {
        store: store.clone(),
        catalog: Arc::new(Catalogue { whole: catalog.clone(), is_new: is_new.clone() }),
        placement: notes.clone(),
        gateway,
        authenticate: Arc::new(TestAuth(auth.clone())),
        bindings: Arc::new(TestBindings),
        limits,
        default_namespace: "default".to_owned(),
        traces,
        user: UserSettings::new(authentication, stop.clone()),
    });
    service.start();
    let shutdown = stop.clone().cancelled_owned();
    tokio::spawn(async move { axum::serve(listener, worker::router(state)).with_graceful_shutdown(shutdown).await });
    Rig { is_new, service, notes, address, token: auth.token(1), catalog, folder, stop }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.cancel();
        self.service.stopping().cancel();
    }
}

pub fn principal() -> Principal {
    Principal("key:test".to_owned())
}

pub fn submit(agent: &str, session: Option<&str>) -> Submit {
    Submit {
        session_id: session.map(|id| SessionId::new(id).unwrap()),
        ..Submit::text(ComponentRef::agent("default", agent), principal(), "hello")
    }
}

impl Rig {
    pub async fn submit(&self, agent: &str, session: Option<&str>) -> Submitted {
        self.service.submit(submit(agent, session)).await.unwrap()
    }

    pub async fn worker(&self, name: &str) -> Worker {
        Worker::connect(self, name, "first", Vec::new()).await.unwrap()
    }

    /// Waits until the run has this status.
    pub async fn status(&self, run_id: &RunId, status: RunStatus) {
        let mut last = None;
        let reached = async {
            loop {
                let run = self.service.run(run_id, None).await.unwrap();
                if run.status == status {
                    return;
                }
                last = Some(run.status);
                tick().await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        assert!(reached.is_ok(), "{status:?} was never reached, but {last:?}");
    }

    /// All frames of the run's stream, to its end.
    pub async fn events(&self, run_id: &RunId, after: Option<u64>) -> Vec<(u64, String)> {
        let stream = self.service.stream(run_id, after).collect::<Vec<_>>();
        let chunks = tokio::time::timeout(PATIENCE, stream).await.expect("the stream ends");
        chunks.iter().flat_map(|chunk| parse(&chunk.frames)).collect()
    }
}

/// Waits until something is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let wait = async {
        while !so() {
            tick().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

async fn tick() {
    let mut interval = tokio::time::interval(Duration::from_millis(5));
    interval.tick().await;
    interval.tick().await;
}

/// Ids and names of SSE frames.
pub fn parse(frames: &str) -> Vec<(u64, String)> {
    let frame = |frame: &str| {
        let line = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap();
        (line("id: ").parse().unwrap(), line("event: "))
    };
    frames.split_terminator("\n\n").map(frame).collect()
}

pub fn held(assignment: &Assignment) -> HeldRun {
    HeldRun { run_id: assignment.run_id.clone(), epoch: assignment.epoch }
}

pub fn event(event: RunEvent) -> Entry {
    Entry { at_ms: 1, event: Some(event), record: None }
}

pub fn started() -> Entry {
    event(RunEvent::RunStarted { model: "echo-1".to_owned(), model_provider: "Scripted".to_owned() })
}

pub fn completed(text: &str) -> Entry {
    let (content, content_type) = (Value::String(text.to_owned()), "str".to_owned());
    Entry {
        at_ms: 2,
        event: Some(RunEvent::RunCompleted {
            content: content.clone(),
            content_type: content_type.clone(),
            metrics: None,
        }),
        record: Some(Record::Finished(RunEnd::Completed { content, content_type })),
    }
}

pub fn cancelled() -> Entry {
    let (content, reason) = (String::new(), "asked".to_owned());
    Entry {
        at_ms: 2,
        event: Some(RunEvent::RunCancelled { content: content.clone(), reason: reason.clone() }),
        record: Some(Record::Finished(RunEnd::Cancelled { content, reason })),
    }
}

/// The status of a plain request to the worker port.
pub async fn plain(rig: &Rig, request: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}
