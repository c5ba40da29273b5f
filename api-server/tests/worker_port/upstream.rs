//! A model server that answers when a test lets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::{ModelError, ModelReply, ModelRequest};
use cadre_protocol::worker::{Assignment, ServerFrame, WorkerFrame};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::Worker;

/// What happens to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// They wait.
    Shut,
    /// They are answered with these prompt and answer tokens.
    Open(u64, u64),
    /// They are answered with so many letters.
    Long(usize),
    /// They fail at once.
    Broken,
}

#[derive(Clone)]
struct Shared {
    seen: Arc<AtomicU32>,
    gate: watch::Receiver<Gate>,
    limits: Arc<std::sync::Mutex<Vec<u64>>>,
}

/// The server.
pub struct Upstream {
    pub address: String,
    gate: watch::Sender<Gate>,
    shared: Shared,
}

impl Upstream {
    /// It is shut at first.
    pub async fn start() -> Self {
        let gate = watch::Sender::new(Gate::Shut);
        let shared = Shared { seen: Arc::default(), gate: gate.subscribe(), limits: Arc::default() };
        let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, gate, shared }
    }

    /// Requests that have come.
    pub fn seen(&self) -> u32 {
        self.shared.seen.load(Ordering::Acquire)
    }

    /// The most answer tokens that each of them asked for.
    pub fn limits(&self) -> Vec<u64> {
        self.shared.limits.lock().unwrap().clone()
    }

    pub fn set(&self, gate: Gate) {
        self.gate.send_replace(gate);
    }
}

async fn answer(State(mut shared): State<Shared>, Json(body): Json<Value>) -> Result<Json<Value>, StatusCode> {
    shared.limits.lock().unwrap().push(body["max_tokens"].as_u64().unwrap());
    shared.seen.fetch_add(1, Ordering::AcqRel);
    let gate = *shared.gate.wait_for(|gate| *gate != Gate::Shut).await.map_err(|_| StatusCode::GONE)?;
    let (content, prompt, completion) = match gate {
        Gate::Open(prompt, completion) => ("hi".to_owned(), prompt, completion),
        Gate::Long(letters) => ("x".repeat(letters), 1, 1),
        Gate::Shut | Gate::Broken => return Err(StatusCode::BAD_REQUEST),
    };
    Ok(Json(json!({
        "id": "c", "object": "chat.completion", "model": "m-1",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    })))
}

/// A Model with prices, one without, and agents with limits.
pub fn manifests(upstream: &Upstream, budget: &str) -> String {
    let address = &upstream.address;
    let agent = |name: &str, model: &str, limits: &str| {
        format!(
            "---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {{name: {name}}}
spec: {{modelRef: {{name: {model}}}, limits: {limits}}}
"
        )
    };
    let model = |name: &str, more: &str| {
        format!(
            "---
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec:
  provider: OpenAICompatible
  model: m-1
  baseUrl: {address}
  retries: 0
  parameters: {{maxOutputTokens: 1000, extra: {{max_tokens: 100000}}}}
  {more}
"
        )
    };
    let pricing = "pricing: {input: '1', output: '2'}";
    [
        model("priced", pricing),
        model("shared", &format!("{pricing}\n  budget: {{usd: '{budget}', window: Month}}")),
        model("unpriced", ""),
        agent("thrifty", "priced", "{maxTokens: 5000}"),
        agent("poor", "priced", "{maxBudgetUsd: '0.0001'}"),
        agent("shares", "shared", "{maxTurns: 100}"),
        agent("unknown", "unpriced", "{maxBudgetUsd: '1'}"),
        agent("free", "unpriced", "{maxTurns: 100}"),
    ]
    .concat()
}

/// How a model call came out.
pub async fn outcome(worker: &mut Worker, number: u64) -> Result<ModelReply, ModelError> {
    worker
        .expect("an outcome", |frame| match frame {
            ServerFrame::ModelReply { call, reply } if *call == number => Some(Ok((**reply).clone())),
            ServerFrame::ModelFailed { call, error } if *call == number => Some(Err(error.clone())),
            _ => None,
        })
        .await
}

/// A model call.
pub fn ask(assignment: &Assignment, call: u64, model: &str) -> WorkerFrame {
    let Assignment { run_id, epoch, .. } = assignment;
    let request = Box::new(ModelRequest {
        model: model.to_owned(),
        messages: vec![Message::text(Role::User, "ping", 0)],
        tools: Vec::new(),
        tool_choice: None,
        output_schema: None,
    });
    WorkerFrame::ModelCall { call, run_id: run_id.clone(), epoch: *epoch, request }
}
