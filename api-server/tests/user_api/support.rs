//! A server without listeners: router, domain, SQLite in memory, two agents, and a worker that does what the input says.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use cadre_api::auth::actor::Actor;
use cadre_api::auth::key::{Authentication, SecurityKey};
use cadre_api::catalog::{Catalog, CatalogAgent, Resolved};
use cadre_api::domain::lease::Arrival;
use cadre_api::domain::upkeep::Retention;
use cadre_api::domain::{Limits, Parts, Service, Writer};
use cadre_api::listen::user;
use cadre_api::metrics::Metrics;
use cadre_api::placement::{Placement, PlacementError, PlacementEvent, Serves, Wanted};
use cadre_api::routes::state::UserSettings;
use cadre_api::telemetry::Traces;
use cadre_gateway::ModelConfig;
use cadre_protocol::agent::{AgentSnapshot, Builtin, Gates, HistoryPolicy, ModelBinding, RetryPolicy, ToolBinding};
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId, WorkerId};
use cadre_protocol::journal::{Batch, Entry, Record};
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::requirement::{Decision, RunRequirement, UserInputField, Verdict};
use cadre_protocol::run::{RunEnd, RunFailure};
use cadre_protocol::tool::ToolExecution;
use cadre_protocol::worker::{Assignment, ServerFrame};
use cadre_store::rows::Principal;
use cadre_store::sqlite::SqliteStore;
use cadre_store::traits::Schema as _;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use secrecy::SecretString;
use serde_json::Value;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

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
    fn events(&self) -> broadcast::Receiver<PlacementEvent> {
        self.0.subscribe()
    }
    fn workers_survive(&self) -> bool {
        false
    }
}

async fn connect(service: &Service, released: watch::Receiver<bool>) {
    let writer = Writer { worker_id: WorkerId::new("local/1").unwrap(), registration: "r1".to_owned() };
    let (control, mut frames) = mpsc::unbounded_channel();
    let close = CancellationToken::new();
    let arrival =
        Arrival { writer: writer.clone(), serves: Serves::Any, component: None, held: Vec::new(), control, close };
    service.connected(arrival).await;
    let service = service.clone();
    tokio::spawn(async move {
        let cancels = watch::Sender::new(Vec::<RunId>::new());
        while let Some(frame) = frames.recv().await {
            match frame {
                ServerFrame::Assign(assignment) => {
                    let engine = Engine::new(&service, &writer, &assignment);
                    tokio::spawn(engine.run(*assignment, released.clone(), cancels.subscribe()));
                }
                ServerFrame::Cancel { run_id, .. } => cancels.send_modify(|all| all.push(run_id)),
                _ => {}
            }
        }
    });
}

/// Executes one run: `wait` waits, `pause yes-1 input-1 ext-1` waits for a person's answers to calls of these ids (with
/// `then-wait` it waits once more after them), `fail` fails at its first attempt, `tool` calls a tool, `long N` says N pieces, all else
/// is echoed. A run that goes on answers the last thing that the user said.
struct Engine {
    service: Service,
    writer: Writer,
    run_id: RunId,
    epoch: Epoch,
    next: u64,
}

impl Engine {
    fn new(service: &Service, writer: &Writer, assignment: &Assignment) -> Self {
        Self {
            service: service.clone(),
            writer: writer.clone(),
            run_id: assignment.run_id.clone(),
            epoch: assignment.epoch,
            next: assignment.progress.next_index,
        }
    }

    async fn run(
        mut self,
        assignment: Assignment,
        mut released: watch::Receiver<bool>,
        mut cancels: watch::Receiver<Vec<RunId>>,
    ) {
        let said = assignment.progress.messages.iter().rfind(|message| message.role == Role::User);
        let text = said.map_or_else(|| assignment.input.text.clone(), |message| message.content.clone());
        let first = match said {
            Some(_) => entry(Some(RunEvent::RunContinued {}), None),
            None => {
                let started = RunEvent::RunStarted { model: "scripted".into(), model_provider: "Scripted".into() };
                entry(Some(started), Some(Record::Message(Message::text(Role::User, text.clone(), 1_000))))
            }
        };
        self.append(vec![first]).await;
        let own = self.run_id.clone();
        let mut answer = format!("You said: {text}");
        if let Some(calls) = text.strip_prefix("pause ") {
            let calls: Vec<&str> = calls.split(' ').filter(|call| *call != "then-wait").collect();
            match assignment.progress.decisions.is_empty() {
                true => return self.pause(&calls).await,
                false => self.obey(assignment.progress.decisions).await,
            }
            if text.ends_with("then-wait") {
                let _ = released.wait_for(|released| *released).await;
            }
        }
        if text == "wait" {
            self.append(vec![entry(Some(RunEvent::text("partial ")), None)]).await;
            tokio::select! {
                _ = async { let _ = released.wait_for(|released| *released).await; } => {}
                _ = async { let _ = cancels.wait_for(|all| all.contains(&own)).await; } => {
                    let cancelled = RunEvent::RunCancelled { content: "partial ".into(), reason: "cancelled".into() };
                    let end = RunEnd::Cancelled { content: "partial ".into(), reason: "cancelled".into() };
                    return self.append(vec![entry(Some(cancelled), Some(Record::Finished(end)))]).await;
                }
            }
        }
        if text == "fail" && assignment.attempt == 1 {
            let failed = RunEvent::RunError {
                content: "the model is down".into(),
                error_type: "model_provider_error".into(),
                error_id: None,
            };
            let end = RunEnd::Error(RunFailure {
                error_type: "model_provider_error".into(),
                error_id: None,
                message: "the model is down".into(),
                retryable: false,
            });
            return self.append(vec![entry(Some(failed), Some(Record::Finished(end)))]).await;
        }
        if text == "tool" {
            self.tool().await;
        }
        if let Some(pieces) = text.strip_prefix("long ").and_then(|n| n.parse::<usize>().ok()) {
            answer = "x".repeat(pieces);
            for piece in 0..pieces {
                // Every third entry is a record without an event: numbers have holes.
                let event = (piece % 3 != 2).then(|| RunEvent::text("x"));
                let record = event.is_none().then(|| Record::Message(Message::text(Role::System, "note", 1_000)));
                self.append(vec![entry(event, record)]).await;
            }
        } else {
            self.append(vec![entry(Some(RunEvent::text(answer.clone())), None)]).await;
        }
        let said = Message::text(Role::Assistant, answer.clone(), 2_000);
        let completed =
            RunEvent::RunCompleted { content: answer.clone().into(), content_type: "str".into(), metrics: None };
        let end = RunEnd::Completed { content: answer.into(), content_type: "str".into() };
        let entries =
            vec![entry(None, Some(Record::Message(said))), entry(Some(completed), Some(Record::Finished(end)))];
        self.append(entries).await;
    }

    async fn pause(&mut self, calls: &[&str]) {
        let call = |id: &&str| ToolCall {
            id: (*id).into(),
            name: "shell".into(),
            arguments: serde_json::json!({"command": id}).to_string(),
        };
        let calls: Vec<ToolCall> = calls.iter().map(call).collect();
        let requirements: Vec<_> = calls.iter().map(|call| RunRequirement::new(waits(call), 1_500)).collect();
        let asks = Message { tool_calls: calls, ..Message::text(Role::Assistant, "May I?", 1_500) };
        let event = RunEvent::paused("May I?".into(), requirements.clone());
        let paused = Record::Paused { content: "May I?".into(), requirements };
        self.append(vec![
            entry(None, Some(Record::Message(asks))),
            entry(Some(RunEvent::RunContentCompleted {}), None),
            entry(Some(event), Some(paused)),
        ])
        .await;
    }

    /// Carries out what was approved, and tells the model of the rest.
    async fn obey(&mut self, decisions: Vec<Decision>) {
        for Decision { verdict, tool, .. } in decisions {
            let call = ToolCall { id: tool.tool_call_id.clone(), name: tool.tool_name.clone(), arguments: "{}".into() };
            let result = tool.result.clone().unwrap_or_else(|| "done".into());
            let done =
                ToolExecution { result: Some(result.clone()), requires_confirmation: Some(false), ..tool.clone() };
            let approved = verdict == Verdict::Approved;
            let started = RunEvent::ToolCallStarted { tool: tool.clone() };
            let ended = RunEvent::ToolCallCompleted { tool: done.clone(), content: "done".into() };
            let finished = Record::ToolFinished { tool: done, effect: None, unknown_outcome: false };
            self.append(vec![
                entry(approved.then_some(started), approved.then_some(Record::ToolStarted { tool, idempotent: false })),
                entry(approved.then_some(ended), Some(finished)),
                entry(None, Some(Record::Message(Message::tool_result(&call, result, false, 1_600)))),
            ])
            .await;
        }
    }

    async fn tool(&mut self) {
        let call = ToolCall { id: "call-1".into(), name: "shell".into(), arguments: r#"{"command":"ls"}"#.into() };
        let asks = Message { tool_calls: vec![call.clone()], ..Message::text(Role::Assistant, "", 1_500) };
        let args = serde_json::from_str(&call.arguments).unwrap();
        let begun = ToolExecution {
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            tool_args: args,
            ..Default::default()
        };
        let done = ToolExecution { result: Some("a.csv".into()), tool_call_error: Some(false), ..begun.clone() };
        let completed = RunEvent::ToolCallCompleted { tool: done.clone(), content: "shell() completed".into() };
        self.append(vec![
            entry(None, Some(Record::Message(asks))),
            entry(
                Some(RunEvent::ToolCallStarted { tool: begun.clone() }),
                Some(Record::ToolStarted { tool: begun, idempotent: false }),
            ),
            entry(Some(completed), Some(Record::ToolFinished { tool: done, effect: None, unknown_outcome: false })),
            entry(None, Some(Record::Message(Message::tool_result(&call, "a.csv", false, 1_600)))),
        ])
        .await;
    }

    async fn append(&mut self, entries: Vec<Entry>) {
        let count = u64::try_from(entries.len()).unwrap();
        let batch = Batch { run_id: self.run_id.clone(), epoch: self.epoch, first_index: self.next, entries };
        self.service.append(&self.writer, batch).await;
        self.next += count;
    }
}

/// A call that waits, of the kind that its id says.
fn waits(call: &ToolCall) -> ToolExecution {
    let is = |kind: &str| call.id.starts_with(kind).then_some(true);
    let field = UserInputField { name: "cwd".into(), field_type: "str".into(), description: None, value: None };
    ToolExecution {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        tool_args: serde_json::from_str(&call.arguments).unwrap(),
        requires_confirmation: is("yes"),
        requires_user_input: is("input"),
        user_input_schema: is("input").map(|_| vec![field]),
        external_execution_required: is("ext"),
        ..ToolExecution::default()
    }
}

fn entry(event: Option<RunEvent>, record: Option<Record>) -> Entry {
    Entry { at_ms: 1_796_007_354_000, event, record }
}
