//! A server without listeners: router, domain, SQLite in memory, two agents, and a worker that does what the input says.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use cadre_api::auth::actor::Actor;
use cadre_api::auth::key::{Authentication, SecurityKey};
use cadre_api::catalog::{Catalog, CatalogAgent, Resolved};
use cadre_api::domain::upkeep::Retention;
use cadre_api::domain::{Limits, Parts, Service};
use cadre_api::listen::user;
use cadre_api::metrics::Metrics;
use cadre_api::placement::{Placement, PlacementError, PlacementEvent, Wanted};
use cadre_api::routes::state::UserSettings;
use cadre_api::telemetry::Traces;
use cadre_gateway::ModelConfig;
use cadre_protocol::agent::{AgentSnapshot, Builtin, Gates, HistoryPolicy, ModelBinding, RetryPolicy, ToolBinding};
use cadre_protocol::ids::{ComponentRef, SessionId, WorkerId};
use cadre_store::rows::Principal;
use cadre_store::sqlite::SqliteStore;
use cadre_store::traits::Schema as _;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use secrecy::SecretString;
use serde_json::Value;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::engine::connect;

/// Longest wait for anything; generous, because machines are busy.
const PATIENCE: Duration = Duration::from_secs(120);

pub const ADMIN_KEY: &str = "admin-0123456789abcdef0123456789abcdef";
pub const ADA_KEY: &str = "ada-0123456789abcdef0123456789abcdef-a";
pub const BOB_KEY: &str = "bob-0123456789abcdef0123456789abcdef-b";

/// The server.
pub struct World {
    pub router: Router,
    pub service: Service,
    pub store: Arc<SqliteStore>,
    /// Lets runs of `wait` go on.
    pub release: watch::Sender<bool>,
}

/// An answer that was read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: http::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap_or_default().to_owned()
    }
}

fn key(key: &str, principal: &str, admin: bool) -> SecurityKey {
    let holder = Actor { principal: Principal(principal.to_owned()), admin };
    SecurityKey::new(&SecretString::from(key.to_owned()), holder).unwrap()
}

/// A server whose callers have keys.
pub async fn world() -> World {
    let keys =
        vec![key(ADMIN_KEY, "key:default", true), key(ADA_KEY, "key:ada", false), key(BOB_KEY, "key:bob", false)];
    world_with(Authentication::Keys(keys)).await
}

/// The same on a record as it is.
pub async fn world_on(store: SqliteStore) -> World {
    let keys = vec![key(ADMIN_KEY, "key:default", true), key(ADA_KEY, "key:ada", false)];
    world_of(Authentication::Keys(keys), store, limits()).await
}

pub async fn world_with(authentication: Authentication) -> World {
    let store = SqliteStore::in_memory().unwrap();
    store.migrate().await.unwrap();
    world_of(authentication, store, limits()).await
}

/// A server with other limits, whose caller may do all.
pub async fn world_limited(limits: Limits) -> World {
    let store = SqliteStore::in_memory().unwrap();
    store.migrate().await.unwrap();
    world_of(Authentication::Keys(vec![key(ADMIN_KEY, "key:default", true)]), store, limits).await
}

pub fn limits() -> Limits {
    Limits { max_queue_depth: 3, agent_wait: Duration::ZERO, retention: Retention::new(24, 30), ..Limits::default() }
}

async fn world_of(authentication: Authentication, store: SqliteStore, limits: Limits) -> World {
    let store = Arc::new(store);
    let service = Service::new(Parts {
        store: store.clone(),
        catalog: Arc::new(Agents::new()),
        placement: Arc::new(Nothing(broadcast::Sender::new(1))),
        limits,
        default_namespace: "default".to_owned(),
        metrics: Metrics::default(),
        traces: Traces::default(),
    });
    service.start_when_current().await;
    let (release, released) = watch::channel(false);
    connect(&service, released).await;
    let settings = UserSettings::new(authentication, CancellationToken::new());
    World { router: user::router(service.clone(), settings), service, store, release }
}

impl World {
    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(request(Method::GET, path, ADMIN_KEY, "", "")).await
    }

    /// A urlencoded form.
    pub async fn post(&self, path: &str, form: &str) -> Answer {
        self.send(request(Method::POST, path, ADMIN_KEY, FORM, form)).await
    }

    pub async fn json(&self, method: Method, path: &str, body: &str) -> Answer {
        self.send(request(method, path, ADMIN_KEY, "application/json", body)).await
    }

    /// Waits for something that is about to be so.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut looks = tokio::time::interval(Duration::from_millis(2));
        let looking = async {
            loop {
                looks.tick().await;
                let answer = self.get(path).await;
                if answer.status == 200 && wanted(&answer.json()) {
                    return answer.json();
                }
            }
        };
        match tokio::time::timeout(PATIENCE, looking).await {
            Ok(found) => found,
            Err(_) => panic!("{path} never became what is wanted: {}", self.get(path).await.text),
        }
    }
}

pub const FORM: &str = "application/x-www-form-urlencoded";

pub fn request(method: Method, path: &str, key: &str, media_type: &str, body: &str) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, "localhost:7777");
    if !key.is_empty() {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    if !media_type.is_empty() {
        request = request.header(header::CONTENT_TYPE, media_type);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

/// Frames of a stream as (id, event, data).
pub fn frames(text: &str) -> Vec<(Option<u64>, String, Value)> {
    let mut frames = Vec::new();
    for frame in text.split_terminator("\n\n").filter(|frame| !frame.starts_with(':')) {
        let line = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
        let data = serde_json::from_str(line("data: ").unwrap()).unwrap();
        frames.push((line("id: ").map(|id| id.parse().unwrap()), line("event: ").unwrap().to_owned(), data));
    }
    frames
}

/// Names of a stream's events.
pub fn names(text: &str) -> Vec<String> {
    frames(text).into_iter().map(|(_, name, _)| name).collect()
}

struct Agents(watch::Sender<u64>);

impl Agents {
    fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    fn all() -> Vec<CatalogAgent> {
        let ready = |namespace: &str, api_id: &str, name: &str| CatalogAgent {
            component: ComponentRef::parse_agent(api_id, "default"),
            api_id: api_id.to_owned(),
            display_name: name.to_owned(),
            description: Some("Helps".to_owned()),
            state: Ok(resolved(namespace, api_id, name)),
        };
        let broken =
            CatalogAgent { state: Err("Model gpt is missing".to_owned()), ..ready("default", "broken", "Broken") };
        vec![broken, ready("default", "helper", "Helper"), ready("team-a", "team-a.other", "Other")]
    }
}

fn resolved(namespace: &str, api_id: &str, name: &str) -> Resolved {
    let tool = |builtin| ToolBinding {
        builtin,
        timeout_seconds: 60,
        idempotent: false,
        hosts: Vec::new(),
        gates: Gates::default(),
    };
    let snapshot = AgentSnapshot {
        component: ComponentRef::parse_agent(api_id, "default"),
        api_id: api_id.to_owned(),
        display_name: name.to_owned(),
        description: Some("Helps".to_owned()),
        model: ModelBinding { name: "echo".into(), provider: "Scripted".into(), model_id: "scripted".into() },
        instructions: "Be brief.".to_owned(),
        expected_output: None,
        additional_context: None,
        markdown: false,
        tools: vec![tool(Builtin::Shell)],
        tool_call_limit: None,
        tool_choice: None,
        max_turns: 10,
        history: HistoryPolicy { runs: 3 },
        skip_events: Vec::new(),
        output_schema: None,
        retry: RetryPolicy { retries: 0, delay_seconds: 1, exponential: false },
        timeout_seconds: None,
        max_queue_depth: None,
        max_concurrent_sessions: None,
        max_tokens: None,
        max_cost_nano_usd: None,
        on_unknown_outcome: Default::default(),
        on_workspace_loss: Default::default(),
        warm_seconds: 60,
    };
    let revision = snapshot.revision();
    let model = Arc::new(ModelConfig::scripted(namespace, "echo", None));
    Resolved { snapshot: Arc::new(snapshot), revision, model }
}

impl Catalog for Agents {
    fn agent(&self, component: &ComponentRef) -> Option<CatalogAgent> {
        Self::all().into_iter().find(|agent| agent.component == *component)
    }
    fn agents(&self) -> Vec<CatalogAgent> {
        Self::all()
    }
    fn model(&self, namespace: &str, name: &str) -> Option<Arc<ModelConfig>> {
        Some(Arc::new(ModelConfig::scripted(namespace, name, None)))
    }
    fn models(&self) -> Vec<Arc<ModelConfig>> {
        Vec::new()
    }
    fn changes(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
    fn synced(&self) -> bool {
        true
    }
}

/// Makes no workers: there is one.
struct Nothing(broadcast::Sender<PlacementEvent>);

#[async_trait::async_trait]
impl Placement for Nothing {
    async fn ensure(&self, _: &Wanted) -> Result<(), PlacementError> {
        Ok(())
    }
    fn lost(&self, _: &WorkerId) {}
    async fn retire(&self, _: &SessionId, _: &ComponentRef) -> Result<(), PlacementError> {
        Ok(())
    }
    async fn remove(&self, _: &SessionId, _: &ComponentRef) -> Result<(), PlacementError> {
        Ok(())
    }
    fn events(&self) -> broadcast::Receiver<PlacementEvent> {
        self.0.subscribe()
    }
    fn workers_survive(&self) -> bool {
        false
    }
}

/// The id of a run as it was answered.
pub fn id(run: &Value) -> &str {
    run["run_id"].as_str().unwrap()
}
