//! Calls of a worker: models, tools of the gateway, pieces of files. Each under the run's own revision and epoch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cadre_gateway::{Meter, ModelConfig};
use cadre_protocol::agent::{Builtin, ToolBinding};
use cadre_protocol::ids::{BlobDigest, RunId};
use cadre_protocol::model::{ModelError, ModelErrorCategory, ModelReply, ModelRequest};
use cadre_protocol::requirement::Gate;
use cadre_protocol::worker::{BLOB_CHUNK_BYTES, HeldRun, RemoteToolResult, ServerFrame};
use cadre_store::rows::ModelCallRow;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::WorkerPort;
use super::deltas::Deltas;
use super::meter::CallMeter;
use crate::domain::{RunScope, Writer};

/// How long a call waits for a server that has just begun to know the Models that there are.
const MODELS_KNOWN: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Most calls that a worker may have open.
const OPEN_CALLS: usize = 256;

/// What a worker asks for.
#[derive(Debug)]
pub enum Call {
    /// A model's answer.
    Model(Box<ModelRequest>),
    /// A tool's result.
    Tool(Tool),
    /// A piece of a file.
    Blob(BlobDigest, u64),
}

/// A tool's call.
#[derive(Debug)]
pub struct Tool {
    /// The model's id of the call.
    pub call_id: String,
    /// Name.
    pub name: String,
    /// Arguments.
    pub arguments: Map<String, Value>,
}

/// The calls of one connection.
#[derive(Clone)]
pub struct Calls {
    port: WorkerPort,
    writer: Writer,
    out: mpsc::Sender<ServerFrame>,
    open: Arc<Mutex<HashMap<u64, CancellationToken>>>,
    connection: CancellationToken,
}

impl Calls {
    /// Calls of a new connection, which all end when `connection` does.
    #[must_use]
    pub fn new(
        port: WorkerPort,
        writer: Writer,
        out: mpsc::Sender<ServerFrame>,
        connection: CancellationToken,
    ) -> Self {
        Self { port, writer, out, open: Arc::default(), connection }
    }

    /// Begins a call. Its answer goes to the connection.
    pub async fn begin(&self, call: u64, held: HeldRun, what: Call) {
        let token = self.connection.child_token();
        if !self.register(call, &token) {
            let _ = self.out.send(refusal(call, &what, "too many open calls, or a number used twice")).await;
            return;
        }
        // Now, in the order of the frames: whoever comes after the run's last batch finds none.
        let known = self.port.service.scope(&self.writer, &held.run_id, held.epoch);
        let calls = self.clone();
        self.port.service.clone().spawn(async move {
            let answer = calls.answered(call, known, held, what, &token).await;
            // Whoever took the call back, or lost the run, wants no answer. Upstream work ends with the token.
            token.cancel();
            calls.forget(call);
            if let Some(answer) = answer {
                let _ = calls.out.send(answer).await;
            }
        });
    }

    /// The answer to a call, unless nobody wants one any more. A run that this server does not know of is looked up for as
    /// long as that takes: its worker may have come while the database was away.
    async fn answered(
        &self,
        call: u64,
        known: Option<Arc<RunScope>>,
        held: HeldRun,
        what: Call,
        token: &CancellationToken,
    ) -> Option<ServerFrame> {
        let scope = match known {
            Some(scope) => Some(scope),
            None => tokio::select! {
                biased;
                () = token.cancelled() => return None,
                scope = self.port.service.late_scope(&self.writer, &held) => scope,
            },
        };
        let Some(scope) = scope else {
            let _ = self.out.send(ServerFrame::Fenced { run_id: held.run_id, epoch: held.epoch }).await;
            return Some(refusal(call, &what, "the run is not this worker's"));
        };
        tokio::select! {
            biased;
            () = token.cancelled() => None,
            () = scope.over.cancelled() => None,
            answer = self.answer(call, &scope, what, token) => Some(answer),
        }
    }

    /// The answer is no longer wanted.
    pub fn cancel(&self, call: u64) {
        if let Some(token) = self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&call) {
            token.cancel();
        }
    }

    fn register(&self, call: u64, token: &CancellationToken) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.len() < OPEN_CALLS && open.insert(call, token.clone()).is_none()
    }

    fn forget(&self, call: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
    }

    async fn answer(&self, call: u64, scope: &RunScope, what: Call, token: &CancellationToken) -> ServerFrame {
        match what {
            Call::Model(request) => match self.model(call, scope, *request, token).await {
                Ok(reply) => ServerFrame::ModelReply { call, reply: Box::new(reply) },
                Err(error) => {
                    self.port.service.metrics().model_error(&error);
                    ServerFrame::ModelFailed { call, error }
                }
            },
            Call::Tool(tool) => ServerFrame::ToolResult { call, result: self.tool(scope, tool).await },
            Call::Blob(digest, offset) => self.blob(call, scope, &digest, offset).await,
        }
    }

    async fn model(
        &self,
        call: u64,
        scope: &RunScope,
        request: ModelRequest,
        token: &CancellationToken,
    ) -> Result<ModelReply, ModelError> {
        let service = &self.port.service;
        if request.model != scope.agent.model.name {
            return Err(model_error(ModelErrorCategory::Policy, "the agent may not use this model"));
        }
        let model = self.find_model(&scope.component.namespace, &request.model).await?;
        let deltas = Deltas::default();
        let mut push = {
            let deltas = deltas.clone();
            move |delta| deltas.push(delta)
        };
        let meter = CallMeter::of(service, scope, &model);
        let within = meter.as_ref().map(|meter| meter as &dyn Meter);
        let asked = self.port.gateway.call_within(&model, request, &mut push, token, within);
        let reply = self.forward(call, &deltas, asked).await?;
        service.metrics().model_reply(&reply);
        let row = ModelCallRow {
            run_id: scope.run_id.clone(),
            model: model.name.clone(),
            reply: reply.clone(),
            at_ms: service.now_ms(),
        };
        // A call that a budget has reserved is on record before the worker may act on its reply. Any other one is queued: a
        // crash within the next milliseconds forgets its tokens.
        let recorded = match meter.and_then(|meter| meter.take()) {
            Some(held) => service.settle(held, row).await,
            None => service.record_model_call(row).await,
        };
        recorded.map_err(|_| model_error(ModelErrorCategory::Network, "the model's reply could not be recorded"))?;
        Ok(reply)
    }

    /// A Model of the catalog. A server that has just begun does not know of any yet.
    async fn find_model(&self, namespace: &str, name: &str) -> Result<Arc<ModelConfig>, ModelError> {
        let catalog = self.port.service.catalog();
        let until = Instant::now() + MODELS_KNOWN;
        loop {
            // Asked first: a Model that is missing from a complete picture is missing.
            let synced = catalog.synced();
            match catalog.model(namespace, name) {
                Some(model) => return Ok(model),
                None if synced => {
                    let gone = "the agent's Model does not exist any more";
                    return Err(model_error(ModelErrorCategory::BadRequest, gone));
                }
                None if Instant::now() >= until => {
                    return Err(model_error(ModelErrorCategory::Network, "the Models are not known yet"));
                }
                None => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Passes pieces on while the call goes on, and all of them before its reply.
    async fn forward(
        &self,
        call: u64,
        deltas: &Deltas,
        asked: impl Future<Output = Result<ModelReply, ModelError>>,
    ) -> Result<ModelReply, ModelError> {
        let pass = async {
            loop {
                let delta = deltas.next().await;
                if self.out.send(ServerFrame::ModelDelta { call, delta }).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let reply = tokio::select! {
            reply = asked => reply,
            () = pass => return Err(model_error(ModelErrorCategory::Cancelled, "the connection has gone")),
        };
        while let Some(delta) = deltas.try_next() {
            let _ = self.out.send(ServerFrame::ModelDelta { call, delta }).await;
        }
        reply
    }

    async fn tool(&self, scope: &RunScope, tool: Tool) -> RemoteToolResult {
        let refused = |why: &str| RemoteToolResult { content: why.to_owned(), error: true };
        let binding = scope.agent.tools.iter().find(|binding| binding.builtin == Builtin::Http);
        let Some(binding) = binding.filter(|_| is_http(&tool.name)) else {
            return refused("the agent has no such tool");
        };
        if !self.is_allowed(scope, &tool, binding).await {
            return refused("403: this call has no approval that is unspent; it was not made");
        }
        let timeout = Duration::from_secs(u64::from(binding.timeout_seconds));
        self.port.gateway.http_tool(&binding.hosts, tool.arguments, timeout).await
    }

    /// A call that needs a person's word spends it here: for exactly these arguments, once (security rule 9).
    async fn is_allowed(&self, scope: &RunScope, tool: &Tool, binding: &ToolBinding) -> bool {
        let Tool { call_id, name, arguments } = tool;
        match binding.gates.of(name, Builtin::Http.arguments().iter().copied()) {
            None => true,
            Some(Gate::ExternalExecution) => false,
            Some(Gate::Confirmation | Gate::UserInput) => {
                self.port.service.spend_approval(&scope.run_id, call_id, name, arguments).await
            }
        }
    }

    async fn blob(&self, call: u64, scope: &RunScope, digest: &BlobDigest, offset: u64) -> ServerFrame {
        let failed = |reason: &str| ServerFrame::BlobFailed { call, reason: reason.to_owned() };
        match self.port.service.session_file(scope, digest, offset, BLOB_CHUNK_BYTES).await {
            Ok(Some(range)) => {
                let end = offset.saturating_add(range.bytes.len() as u64);
                ServerFrame::BlobChunk { call, data: STANDARD.encode(&range.bytes), last: end >= range.total }
            }
            Ok(None) => failed("the session has no such file"),
            Err(_) => failed("the file can't be read now"),
        }
    }
}

/// What becomes of a frame that is larger than a worker takes.
pub enum TooLarge {
    /// This one is sent.
    Instead(ServerFrame),
    /// Nobody needs it: the whole comes later.
    Nothing,
    /// The run can't be told what it needs.
    Refuse(RunId),
}

/// What becomes of such a frame.
#[must_use]
pub fn too_large(frame: ServerFrame) -> TooLarge {
    const ANSWER: &str = "the answer is larger than a worker takes";
    match frame {
        ServerFrame::ModelReply { call, .. } => {
            let error = model_error(ModelErrorCategory::BadRequest, ANSWER);
            TooLarge::Instead(ServerFrame::ModelFailed { call, error })
        }
        ServerFrame::ToolResult { call, .. } => {
            let result = RemoteToolResult { content: ANSWER.to_owned(), error: true };
            TooLarge::Instead(ServerFrame::ToolResult { call, result })
        }
        ServerFrame::Assign(assignment) => TooLarge::Refuse(assignment.run_id),
        _ => TooLarge::Nothing,
    }
}

/// Whether this is the name under which the engine offers the tool.
fn is_http(name: &str) -> bool {
    name == "http"
}

fn model_error(category: ModelErrorCategory, message: &str) -> ModelError {
    ModelError { category, message: message.to_owned(), status: None, retry_after_ms: None }
}

fn refusal(call: u64, what: &Call, reason: &str) -> ServerFrame {
    match what {
        Call::Model(_) => ServerFrame::ModelFailed { call, error: model_error(ModelErrorCategory::Policy, reason) },
        Call::Tool(_) => {
            ServerFrame::ToolResult { call, result: RemoteToolResult { content: reason.to_owned(), error: true } }
        }
        Call::Blob(..) => ServerFrame::BlobFailed { call, reason: reason.to_owned() },
    }
}
