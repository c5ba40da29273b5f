//! Fakes of the engine's ports: a world that outlives engines, and a journal that can be cut.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cadre_protocol::agent::{
    AgentSnapshot, Builtin, Gates, HistoryPolicy, ModelBinding, OnUnknownOutcome, OnWorkspaceLoss, RetryPolicy,
    ToolBinding,
};
use cadre_protocol::exec::{ExecBody, ExecOp};
use cadre_protocol::ids::{BlobDigest, ComponentRef, Epoch, RunId, SessionId};
use cadre_protocol::journal::{Entry, Progress, Record, ToolCallState};
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::model::{FinishReason, ModelDelta, ModelReply, ModelRequest, Usage};
use cadre_protocol::run::{RunInput, Uploads};
use cadre_protocol::tool::WorkspaceEffect;
use cadre_protocol::worker::{Assignment, RemoteToolResult};
use serde_json::{Map, Value};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::ports::{
    Blobs, Chunk, Control, Host, Isolation, Journal, Lost, ModelEvent, ModelStream, Models, RemoteTools, Signal,
    Workspace,
};
use super::uploads::Brought;

/// The only time there is.
pub const NOW_MS: u64 = 1_796_000_000_000;

fn now() -> u64 {
    NOW_MS
}

/// An agent with all tools.
pub fn agent() -> AgentSnapshot {
    let tool = |builtin| ToolBinding {
        builtin,
        timeout_seconds: 60,
        idempotent: false,
        hosts: Vec::new(),
        gates: Gates::default(),
    };
    AgentSnapshot {
        component: ComponentRef::agent("default", "helper"),
        api_id: "helper".into(),
        display_name: "Helper".into(),
        description: None,
        model: ModelBinding { name: "m".into(), provider: "Scripted".into(), model_id: "script".into() },
        instructions: "Be brief.".into(),
        expected_output: None,
        additional_context: None,
        markdown: false,
        tools: vec![tool(Builtin::Shell), tool(Builtin::Files), tool(Builtin::Http)],
        tool_call_limit: None,
        tool_choice: None,
        max_turns: 20,
        history: HistoryPolicy { runs: 5 },
        skip_events: Vec::new(),
        output_schema: None,
        retry: RetryPolicy { retries: 0, delay_seconds: 1, exponential: true },
        timeout_seconds: None,
        max_queue_depth: None,
        max_concurrent_sessions: None,
        max_tokens: None,
        max_cost_nano_usd: None,
        on_unknown_outcome: OnUnknownOutcome::Report,
        on_workspace_loss: OnWorkspaceLoss::Report,
        warm_seconds: 60,
    }
}

/// A run of that agent.
pub fn assignment(text: &str) -> Assignment {
    let agent = agent();
    Assignment {
        run_id: RunId::new("run").unwrap(),
        session_id: SessionId::new("session").unwrap(),
        epoch: Epoch(1),
        attempt: 1,
        revision: agent.revision(),
        agent,
        input: RunInput { text: text.into(), ..RunInput::default() },
        history: Vec::new(),
        progress: Progress::default(),
        effects: Vec::new(),
        uploads: Uploads::default(),
        session_state: Map::new(),
        deadline_ms: None,
    }
}

/// A reply with this text and these calls.
pub fn reply(text: &str, calls: &[(&str, &str, &str)]) -> ModelReply {
    let tool_calls: Vec<ToolCall> = calls
        .iter()
        .map(|(id, name, arguments)| ToolCall {
            id: (*id).into(),
            name: (*name).into(),
            arguments: (*arguments).into(),
        })
        .collect();
    ModelReply {
        finish: if tool_calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls },
        message: Message { tool_calls, ..Message::text(Role::Assistant, text, NOW_MS) },
        usage: Usage { input_tokens: 10, output_tokens: 2, ..Usage::default() },
        cost_nano_usd: Some(1_500_000),
        time_to_first_token_ms: 20,
        duration_ms: 40,
        model_id: "script".into(),
        provider: "Scripted".into(),
    }
}

/// What a model does when it is called: news to send at once, and whether the call stays open after them.
pub type Script = VecDeque<Vec<ModelEvent>>;

/// News of a reply that streams its text whole.
pub fn says(text: &str) -> Vec<ModelEvent> {
    vec![ModelEvent::Delta(ModelDelta::Text(text.into())), ModelEvent::Reply(Box::new(reply(text, &[])))]
}

/// News of a reply that asks for calls.
pub fn asks(calls: &[(&str, &str, &str)]) -> Vec<ModelEvent> {
    vec![ModelEvent::Reply(Box::new(reply("", calls)))]
}

/// Everything outside the engine.
pub struct World {
    /// All entries, in order.
    pub entries: Mutex<Vec<Entry>>,
    /// Sizes of the batches they came in.
    pub batches: Mutex<Vec<usize>>,
    /// Told of each batch.
    pub appended: Notify,
    /// Entries from this number on never become durable; the engine then waits for ever.
    pub cut: Option<u64>,
    /// Told when the cut is reached.
    pub cut_reached: Notify,
    /// What the model says to each call; by number of assistant messages in the request when `keyed`.
    pub script: Mutex<Script>,
    /// Replies by number of assistant messages, for conversations that are begun anew.
    pub keyed: Vec<Vec<ModelEvent>>,
    /// Requests that the model got.
    pub requests: Mutex<Vec<ModelRequest>>,
    /// What ran: command, path or URL.
    pub executed: Mutex<Vec<String>>,
    /// Answers of exec-server, else a command succeeds.
    pub answers: Mutex<VecDeque<Result<ExecBody, Lost>>>,
    /// A command that never ends.
    pub hangs_on: Option<String>,
    /// Told when it runs.
    pub hanging: Notify,
    /// Identity of the workspace.
    pub workspace_id: String,
    /// Files that are missing from it, unless they are staged.
    pub missing: Vec<String>,
    /// Files that were asked after, each time.
    pub looks: Mutex<Vec<Vec<String>>>,
    /// What the process remembers of it.
    pub brought: Arc<Brought>,
    /// A file whose bytes can't be had.
    pub unreadable: Option<BlobDigest>,
    /// Whether the network is isolated.
    pub isolated: bool,
    /// Whether there is a sandbox.
    pub sandbox: bool,
    /// Input files by digest.
    pub blob: Vec<u8>,
    /// Keeps open calls open.
    pub open: Mutex<Vec<mpsc::UnboundedSender<ModelEvent>>>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            entries: Mutex::default(),
            batches: Mutex::default(),
            appended: Notify::new(),
            cut: None,
            cut_reached: Notify::new(),
            script: Mutex::default(),
            keyed: Vec::new(),
            requests: Mutex::default(),
            executed: Mutex::default(),
            answers: Mutex::default(),
            hangs_on: None,
            hanging: Notify::new(),
            workspace_id: "w1".into(),
            missing: Vec::new(),
            looks: Mutex::default(),
            brought: Arc::default(),
            unreadable: None,
            isolated: true,
            sandbox: true,
            blob: Vec::new(),
            open: Mutex::default(),
        }
    }
}

impl World {
    /// A world whose model says this.
    pub fn with(script: impl IntoIterator<Item = Vec<ModelEvent>>) -> Self {
        Self { script: Mutex::new(script.into_iter().collect()), ..Self::default() }
    }

    /// Those of the paths that are not there.
    fn missing_of(&self, paths: &[String]) -> Vec<String> {
        let executed = self.executed.lock().unwrap();
        let is_staged = |path: &str| executed.iter().any(|what| what.starts_with(&format!("stage {path} ")));
        paths.iter().filter(|path| self.missing.contains(path) && !is_staged(path)).cloned().collect()
    }

    /// Waits until there are this many entries.
    pub async fn has_entries(&self, count: usize) {
        while self.entries.lock().unwrap().len() < count {
            self.appended.notified().await;
        }
    }

    /// Names of the events, in order.
    pub fn event_names(&self) -> Vec<&'static str> {
        self.entries.lock().unwrap().iter().filter_map(|entry| entry.event.as_ref()).map(|event| event.name()).collect()
    }

    /// Events as JSON.
    pub fn events(&self) -> Vec<Value> {
        let entries = self.entries.lock().unwrap();
        entries
            .iter()
            .filter_map(|entry| entry.event.as_ref())
            .map(|event| serde_json::to_value(event).unwrap())
            .collect()
    }

    /// The last record.
    pub fn last_record(&self) -> Option<Record> {
        self.entries.lock().unwrap().last().and_then(|entry| entry.record.clone())
    }

    /// Tool messages, in order.
    pub fn tool_messages(&self) -> Vec<Message> {
        let entries = self.entries.lock().unwrap();
        let messages = entries.iter().filter_map(|entry| match &entry.record {
            Some(Record::Message(message)) if message.role == Role::Tool => Some(message.clone()),
            _ => None,
        });
        messages.collect()
    }

    /// What the server would hand to the next engine.
    pub fn progress(&self) -> Progress {
        let entries = self.entries.lock().unwrap();
        let mut progress = Progress { next_index: entries.len() as u64, ..Progress::default() };
        for entry in entries.iter() {
            match entry.record.clone() {
                Some(Record::Message(message)) => {
                    progress.model_calls += u32::from(message.role == Role::Assistant);
                    progress.messages.push(message);
                }
                Some(Record::ToolStarted { tool, idempotent }) => {
                    progress.tool_calls.push(ToolCallState { tool, idempotent, finished: false });
                }
                Some(Record::ToolFinished { tool, .. }) => {
                    let of_call = |state: &&ToolCallState| state.tool.tool_call_id == tool.tool_call_id;
                    let idempotent = progress.tool_calls.iter().find(of_call).is_some_and(|state| state.idempotent);
                    progress.tool_calls.retain(|state| state.tool.tool_call_id != tool.tool_call_id);
                    progress.tool_calls.push(ToolCallState { tool, idempotent, finished: true });
                }
                Some(Record::Retry {}) => progress.retries += 1,
                Some(Record::Finished(_) | Record::Paused { .. }) | None => {}
            }
        }
        progress
    }

    /// What the server would hand to the engine that resumes a run after its end: stand-ins are forgotten, calls that
    /// had begun have no result again, those that had not begun are unknown.
    pub fn resumed(&self) -> Progress {
        let mut progress = self.progress();
        let entries = self.entries.lock().unwrap();
        let stands_in = |id: &str| {
            progress.messages.iter().any(|message| message.stand_in && message.tool_call_id.as_deref() == Some(id))
        };
        let began = |id: &str| {
            entries.iter().any(|entry| {
                matches!(&entry.record, Some(Record::ToolFinished { tool, unknown_outcome: true, .. }) if tool.tool_call_id == id)
            })
        };
        let mut calls = Vec::new();
        for state in &progress.tool_calls {
            let id = &state.tool.tool_call_id;
            match (stands_in(id), state.finished, began(id)) {
                (true, true, false) => {}
                (true, true, true) => calls.push(ToolCallState { finished: false, ..state.clone() }),
                _ => calls.push(state.clone()),
            }
        }
        progress.messages.retain(|message| !message.stand_in);
        Progress { tool_calls: calls, model_calls: 0, retries: 0, ..progress }
    }
}

/// A handle for the engine.
#[derive(Clone)]
pub struct Fake(pub Arc<World>);

impl Fake {
    /// The host of a run in this world.
    pub fn host(&self) -> Host {
        let me = Arc::new(self.clone());
        Host {
            journal: me.clone(),
            models: me.clone(),
            remote: me.clone(),
            blobs: me.clone(),
            workspace: self.0.sandbox.then(|| me.clone() as Arc<dyn Workspace>),
            isolation: me,
            clock: now,
        }
    }
}

/// Reins that nobody pulls, with their other ends.
pub fn control() -> (watch::Sender<Signal>, Control) {
    let (sender, signal) = watch::channel(Signal::Go);
    (sender, Control { signal, drain: CancellationToken::new(), slots: Arc::new(Semaphore::new(1)) })
}

#[async_trait]
impl Journal for Fake {
    fn append(&self, first_index: u64, batch: Vec<Entry>) {
        let mut entries = self.0.entries.lock().unwrap();
        assert_eq!(first_index, entries.len() as u64, "entries without gaps");
        self.0.batches.lock().unwrap().push(batch.len());
        let room = self.0.cut.map_or(usize::MAX, |cut| (cut as usize).saturating_sub(entries.len()));
        if batch.len() > room {
            self.0.cut_reached.notify_one();
        }
        entries.extend(batch.into_iter().take(room));
        self.0.appended.notify_one();
    }

    async fn room(&self) {
        self.durable(0).await;
    }

    async fn durable(&self, below: u64) {
        let durable = self.0.entries.lock().unwrap().len() as u64;
        if self.0.cut == Some(durable) || below > durable {
            self.0.cut_reached.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

impl Models for Fake {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let asked = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        self.0.requests.lock().unwrap().push(request);
        let news = match self.0.keyed.get(asked) {
            Some(news) => news.clone(),
            None => self.0.script.lock().unwrap().pop_front().expect("the model was called too often"),
        };
        let (sender, events) = mpsc::unbounded_channel();
        for event in news {
            sender.send(event).unwrap();
        }
        self.0.open.lock().unwrap().push(sender);
        ModelStream { events, guard: Box::new(()) }
    }
}

#[async_trait]
impl RemoteTools for Fake {
    async fn call(&self, _: &str, _: &str, arguments: Map<String, Value>, _: bool) -> Result<RemoteToolResult, Lost> {
        let url = arguments.get("url").and_then(Value::as_str).unwrap_or_default().to_owned();
        self.0.executed.lock().unwrap().push(url);
        Ok(RemoteToolResult { content: "200".into(), error: false })
    }
}

#[async_trait]
impl Blobs for Fake {
    async fn chunk(&self, digest: &BlobDigest, offset: u64) -> Result<Chunk, String> {
        use base64::Engine as _;
        if self.0.unreadable.as_ref() == Some(digest) {
            return Err("the session has no such file".into());
        }
        let rest = self.0.blob.get(offset as usize..).unwrap_or_default();
        let piece = rest.get(..rest.len().min(1 << 20)).unwrap();
        let data = base64::engine::general_purpose::STANDARD.encode(piece);
        Ok(Chunk { data, last: piece.len() == rest.len() })
    }
}

#[async_trait]
impl Workspace for Fake {
    async fn ready(&self) -> Result<String, Lost> {
        Ok(self.0.workspace_id.clone())
    }

    async fn request(&self, op: ExecOp) -> Result<ExecBody, Lost> {
        let what = match &op {
            ExecOp::Run { command, .. } => command.clone(),
            ExecOp::Missing { paths } => {
                self.0.looks.lock().unwrap().push(paths.clone());
                return Ok(ExecBody::Missing { paths: self.0.missing_of(paths) });
            }
            ExecOp::Stage { path, offset, data } => format!("stage {path} {offset} {}", data.len()),
            ExecOp::Read { path, .. } => format!("read {path}"),
            other => format!("{other:?}"),
        };
        self.0.executed.lock().unwrap().push(what.clone());
        if self.0.hangs_on.as_ref() == Some(&what) {
            self.0.hanging.notify_one();
            std::future::pending::<()>().await;
        }
        if let Some(answer) = self.0.answers.lock().unwrap().pop_front() {
            return answer;
        }
        let effect = WorkspaceEffect { workspace_id: self.0.workspace_id.clone(), ..WorkspaceEffect::default() };
        Ok(match op {
            ExecOp::Run { .. } => ExecBody::Exited {
                code: Some(0),
                signal: None,
                timed_out: false,
                killed: false,
                full: None,
                stdout: format!("ran {what}"),
                stderr: String::new(),
                truncated: false,
                effect,
            },
            ExecOp::Read { .. } => ExecBody::Text { text: "text".into(), total_lines: 1, truncated: false },
            _ => ExecBody::Done { effect },
        })
    }

    fn brought(&self) -> &Brought {
        &self.0.brought
    }
}

#[async_trait]
impl Isolation for Fake {
    fn start(&self) {}

    async fn allows_tools(&self) -> bool {
        self.0.isolated
    }
}
