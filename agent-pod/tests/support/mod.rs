//! A worker port for tests: keeps a journal as strictly as the real one, and breaks connections where it is told to.

use std::path::{Path, PathBuf};

use cadre_agent::config::{Endpoint, Enforcement, EngineConfig, ExecSource, TokenSource};
use cadre_protocol::agent::{
    AgentSnapshot, Builtin, Gates, HistoryPolicy, ModelBinding, OnUnknownOutcome, OnWorkspaceLoss, RetryPolicy,
    ToolBinding,
};
use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId, WorkerId};
use cadre_protocol::journal::{Batch, Entry, Progress, Record};
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::model::{FinishReason, ModelDelta, ModelReply, Usage};
use cadre_protocol::run::{RunInput, Uploads};
use cadre_protocol::worker::{Assignment, Hello, RemoteToolResult, ServerFrame, WorkerFrame};
use futures::{SinkExt, StreamExt};
use serde_json::Map;
use tokio::net::{UnixListener, UnixStream};
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::{WebSocketStream, accept_async};

/// One worker's connection.
pub struct Connection {
    socket: WebSocketStream<UnixStream>,
    /// Its greeting.
    pub hello: Hello,
}

impl Connection {
    /// Accepts the next worker and reads its greeting.
    pub async fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().await.unwrap();
        let socket = accept_async(stream).await.unwrap();
        let hello = Hello { version: 0, registration: String::new(), sandbox: None, runs: Vec::new() };
        let mut connection = Self { socket, hello };
        match connection.receive().await {
            Some(WorkerFrame::Hello(hello)) => connection.hello = hello,
            other => panic!("no greeting: {other:?}"),
        }
        connection
    }

    /// The next frame that is no heartbeat; none when the worker has closed.
    pub async fn receive(&mut self) -> Option<WorkerFrame> {
        loop {
            match self.socket.next().await? {
                Ok(Frame::Text(text)) => match serde_json::from_str(&text).unwrap() {
                    WorkerFrame::Heartbeat {} => {}
                    frame => return Some(frame),
                },
                Ok(Frame::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Sends a frame. A worker that is gone is noticed by the next `receive`.
    pub async fn send(&mut self, frame: ServerFrame) {
        let _ = self.socket.send(Frame::Text(serde_json::to_string(&frame).unwrap().into())).await;
    }

    /// Answers the greeting.
    pub async fn welcome(&mut self) {
        self.send(ServerFrame::Welcome { worker_id: WorkerId::new("local/1").unwrap() }).await;
    }
}

/// What the server knows of the one run.
pub struct Server {
    /// The run.
    pub assignment: Assignment,
    /// Its durable entries.
    pub journal: Vec<Entry>,
    /// The model's replies, by number of assistant messages in the request.
    pub replies: Vec<ModelReply>,
    /// Requests that tools made: the method of each.
    pub requests: Vec<String>,
    /// Whether the worker said that it takes no more runs.
    pub draining: bool,
}

/// Where a connection breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// When this many frames have come; the last of them is lost.
    Before(usize),
    /// When this many frames have come; the last of them took effect, and its answer is lost.
    After(usize),
    /// When the first tool call has come; it is lost.
    BeforeTool,
    /// When the first tool call has come; it took effect, and its answer is lost.
    AfterTool,
}

impl Server {
    /// A server with a run for that agent.
    pub fn new(assignment: Assignment, replies: Vec<ModelReply>) -> Self {
        Self { assignment, journal: Vec::new(), replies, requests: Vec::new(), draining: false }
    }

    /// Whether the run has ended.
    pub fn finished(&self) -> bool {
        matches!(self.journal.last(), Some(Entry { record: Some(Record::Finished(_)), .. }))
    }

    /// Names of the events, in order.
    pub fn event_names(&self) -> Vec<&'static str> {
        self.journal.iter().filter_map(|entry| entry.event.as_ref()).map(|event| event.name()).collect()
    }

    /// Serves a connection until the run has ended or the connection breaks.
    pub async fn serve(&mut self, listener: &UnixListener, at: Option<Break>) -> Option<Connection> {
        let mut connection = Connection::accept(listener).await;
        if at == Some(Break::Before(0)) {
            return None;
        }
        connection.welcome().await;
        if connection.hello.runs.is_empty() && !self.finished() {
            let progress = Progress::default();
            assert!(self.journal.is_empty(), "the worker forgot its run");
            connection.send(ServerFrame::Assign(Box::new(Assignment { progress, ..self.assignment.clone() }))).await;
        }
        let mut frames = 0;
        while let Some(frame) = connection.receive().await {
            frames += 1;
            let is_tool = matches!(frame, WorkerFrame::ToolCall { .. });
            if at == Some(Break::Before(frames)) || (is_tool && at == Some(Break::BeforeTool)) {
                return None;
            }
            let answers = self.take(frame);
            if at == Some(Break::After(frames)) || (is_tool && at == Some(Break::AfterTool)) {
                return None;
            }
            for answer in answers {
                connection.send(answer).await;
            }
            if self.finished() || self.draining {
                return Some(connection);
            }
        }
        None
    }

    /// Takes a frame and gives the answers.
    pub fn take(&mut self, frame: WorkerFrame) -> Vec<ServerFrame> {
        match frame {
            WorkerFrame::Append(batch) => vec![self.append(batch)],
            WorkerFrame::ModelCall { call, request, .. } => {
                let asked = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
                let reply = self.replies[asked].clone();
                let text = reply.message.content.clone();
                let delta = ServerFrame::ModelDelta { call, delta: ModelDelta::Text(text.clone()) };
                let answer = ServerFrame::ModelReply { call, reply: Box::new(reply) };
                if text.is_empty() { vec![answer] } else { vec![delta, answer] }
            }
            WorkerFrame::ToolCall { call, arguments, .. } => {
                let method = arguments.get("method").and_then(|method| method.as_str()).unwrap_or("GET");
                self.requests.push(method.to_owned());
                vec![ServerFrame::ToolResult { call, result: RemoteToolResult { content: "200".into(), error: false } }]
            }
            WorkerFrame::Draining {} => {
                self.draining = true;
                Vec::new()
            }
            WorkerFrame::Isolation { .. } | WorkerFrame::CancelCall { .. } => Vec::new(),
            other => panic!("unexpected {other:?}"),
        }
    }

    fn append(&mut self, batch: Batch) -> ServerFrame {
        let Batch { run_id, epoch, first_index, entries } = batch;
        assert!(first_index <= self.journal.len() as u64, "a gap before {first_index}");
        for (index, entry) in (first_index as usize..).zip(entries) {
            match self.journal.get(index) {
                Some(known) => assert_eq!(*known, entry, "entry {index} changed"),
                None => self.journal.push(entry),
            }
        }
        ServerFrame::Ack { run_id, epoch, next_index: self.journal.len() as u64 }
    }
}

/// A run of an agent with these tools.
pub fn assignment(tools: &[Builtin]) -> Assignment {
    let tools = tools
        .iter()
        .map(|builtin| ToolBinding {
            builtin: *builtin,
            timeout_seconds: 600,
            idempotent: false,
            hosts: Vec::new(),
            gates: Gates::default(),
        })
        .collect();
    let agent = AgentSnapshot {
        component: ComponentRef::agent("default", "helper"),
        api_id: "helper".into(),
        display_name: "Helper".into(),
        description: None,
        model: ModelBinding { name: "m".into(), provider: "Scripted".into(), model_id: "script".into() },
        instructions: String::new(),
        expected_output: None,
        additional_context: None,
        markdown: false,
        tools,
        tool_call_limit: None,
        tool_choice: None,
        max_turns: 20,
        history: HistoryPolicy { runs: 5 },
        skip_events: Vec::new(),
        output_schema: None,
        retry: RetryPolicy { retries: 0, delay_seconds: 1, exponential: false },
        timeout_seconds: None,
        max_queue_depth: None,
        max_concurrent_sessions: None,
        max_tokens: None,
        max_cost_nano_usd: None,
        on_unknown_outcome: OnUnknownOutcome::Report,
        on_workspace_loss: OnWorkspaceLoss::Report,
        warm_seconds: 60,
    };
    Assignment {
        run_id: RunId::new("run").unwrap(),
        session_id: SessionId::new("a session/with any name").unwrap(),
        epoch: Epoch(7),
        attempt: 1,
        revision: agent.revision(),
        agent,
        input: RunInput { text: "hi".into(), ..RunInput::default() },
        history: Vec::new(),
        progress: Progress::default(),
        effects: Vec::new(),
        uploads: Uploads::default(),
        session_state: Map::new(),
        deadline_ms: None,
    }
}

/// A reply with this text and this call.
pub fn reply(text: &str, call: Option<(&str, &str, &str)>) -> ModelReply {
    let tool_calls: Vec<ToolCall> = call
        .into_iter()
        .map(|(id, name, arguments)| ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() })
        .collect();
    ModelReply {
        finish: if tool_calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls },
        message: Message { tool_calls, ..Message::text(Role::Assistant, text, 0) },
        usage: Usage::default(),
        cost_nano_usd: None,
        time_to_first_token_ms: 1,
        duration_ms: 1,
        model_id: "script".into(),
        provider: "Scripted".into(),
    }
}

/// An engine that dials this socket.
pub fn engine(socket: &Path, exec: ExecSource) -> EngineConfig {
    EngineConfig {
        api: Endpoint::Unix(PathBuf::from(socket)),
        token: TokenSource::Text("secret".into()),
        sandbox: None,
        exec,
        probe: None,
        enforcement: Enforcement::Required,
        alive_file: None,
    }
}
