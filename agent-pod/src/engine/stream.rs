//! One model call: its stream into events.

use std::time::Duration;

use cadre_protocol::event::{EventMetrics, RunEvent};
use cadre_protocol::journal::Record;
use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::{ModelDelta, ModelError, ModelErrorCategory, ModelReply, ModelRequest, ToolChoice, Usage};
use serde_json::Value;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::Instant;

use super::bounds;
use super::ends::{self, Stop};
use super::ports::{ModelEvent, ModelStream};
use super::turn::Turn;

/// Pieces of an answer are collected up to this many bytes,
const PIECE_BYTES: usize = 512;
/// or, when they come faster than they are taken, up to this many,
const LARGE_PIECE_BYTES: usize = 16 << 10;
/// or for this long.
const PIECE_TIME: Duration = Duration::from_millis(30);
/// Entries that nobody waits for wait this long for others.
const LAZY_TIME: Duration = Duration::from_millis(5);

/// Pieces of the answer that are not yet an event.
#[derive(Default)]
struct Pieces {
    text: String,
    reasoning: String,
    /// Whether the stream has had one.
    begun: bool,
}

impl Turn {
    /// Asks the model, records its reply and gives the message.
    pub(super) async fn ask(&mut self, conversation: Vec<Message>) -> Result<Message, Stop> {
        // The call goes out before the entries that announce it, which nobody waits for.
        let stream = self.host.models.call(self.request(conversation));
        self.journal.event(self.request_started());
        let reply = self.follow(stream).await?;
        let ModelReply {
            message, usage, cost_nano_usd, time_to_first_token_ms, duration_ms, model_id, provider, ..
        } = reply;
        let metrics = metrics(usage, cost_nano_usd, time_to_first_token_ms, duration_ms);
        let event = RunEvent::ModelRequestCompleted { model: model_id, model_provider: provider, metrics };
        let message = Message { role: Role::Assistant, ..message };
        self.journal.push(Some(event), Some(Record::Message(message.clone())));
        self.partial.clear();
        Ok(message)
    }

    fn request(&self, messages: Vec<Message>) -> ModelRequest {
        let agent = &self.assignment.agent;
        // A forced choice holds for a run's first call only: with it no run would ever come to an answer.
        let is_first = !self.messages.iter().any(|message| message.role == Role::Assistant);
        let tool_choice = match &agent.tool_choice {
            _ if self.specs.is_empty() => None,
            Some(ToolChoice::Required | ToolChoice::Tool(_)) if !is_first => None,
            choice => choice.clone(),
        };
        ModelRequest {
            model: agent.model.name.clone(),
            messages,
            tools: self.specs.clone(),
            tool_choice,
            output_schema: self.schema().cloned(),
        }
    }

    fn request_started(&self) -> RunEvent {
        let model = &self.assignment.agent.model;
        RunEvent::ModelRequestStarted { model: model.model_id.clone(), model_provider: model.provider.clone() }
    }

    /// Turns the news of a call into events until it ends. The first piece goes out at once; later ones are collected.
    async fn follow(&mut self, mut stream: ModelStream) -> Result<ModelReply, ModelError> {
        let mut pieces = Pieces::default();
        let mut due = Some(Instant::now() + LAZY_TIME);
        self.partial.clear();
        loop {
            let news = match stream.events.try_recv() {
                Ok(news) => Some(news),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => {
                    if !pieces.begun && self.emit(&mut pieces) {
                        self.journal.send_paced().await;
                        due = None;
                    }
                    let at = due;
                    tokio::select! {
                        news = stream.events.recv() => news,
                        () = sleep_until(at) => {
                            self.emit(&mut pieces);
                            self.journal.send_paced().await;
                            due = None;
                            continue;
                        }
                    }
                }
            };
            match news {
                Some(ModelEvent::Delta(delta)) => {
                    let bytes = self.take(&mut pieces, delta);
                    // More that is here already makes a larger piece, not more events.
                    if bytes >= LARGE_PIECE_BYTES || (bytes >= PIECE_BYTES && stream.events.is_empty()) {
                        self.emit(&mut pieces);
                        self.journal.send_paced().await;
                        due = None;
                    } else if !pieces.is_empty() {
                        due.get_or_insert_with(|| Instant::now() + PIECE_TIME);
                    }
                }
                Some(ModelEvent::Restarted) => {
                    self.emit(&mut pieces);
                    self.partial.clear();
                    pieces = Pieces::default();
                    self.journal.event(self.request_started());
                    due = Some(Instant::now() + LAZY_TIME);
                }
                Some(ModelEvent::Reply(reply)) => {
                    self.emit(&mut pieces);
                    self.emit_whole(&reply, pieces.begun);
                    return Ok(*reply);
                }
                Some(ModelEvent::Failed(error)) => {
                    self.emit(&mut pieces);
                    return Err(error);
                }
                None => return Err(interrupted()),
            }
        }
    }

    /// Collects a piece; gives the number of bytes collected. With a schema the answer is shown only once it is whole.
    fn take(&mut self, pieces: &mut Pieces, delta: ModelDelta) -> usize {
        match delta {
            ModelDelta::Text(text) => {
                self.partial.push_str(&text);
                if self.schema().is_none() {
                    pieces.text.push_str(&text);
                }
            }
            ModelDelta::Reasoning(text) => pieces.reasoning.push_str(&text),
        }
        pieces.text.len() + pieces.reasoning.len()
    }

    /// Makes events of what is collected. Says whether there was anything.
    fn emit(&mut self, pieces: &mut Pieces) -> bool {
        if pieces.is_empty() {
            return false;
        }
        pieces.begun = true;
        let reasoning = std::mem::take(&mut pieces.reasoning);
        for part in parts(&reasoning) {
            let content = Value::String(String::new());
            let reasoning_content = Some(part.to_owned());
            self.journal.event(RunEvent::RunContent { content, content_type: "str".into(), reasoning_content });
        }
        let text = std::mem::take(&mut pieces.text);
        for part in parts(&text) {
            self.journal.event(RunEvent::text(part));
        }
        true
    }

    /// The answer as one event: where a schema asks for an object, or where no pieces came before the reply.
    fn emit_whole(&mut self, reply: &ModelReply, begun: bool) {
        let text = &reply.message.content;
        if text.is_empty() {
            return;
        }
        if self.schema().is_some() && reply.message.tool_calls.is_empty() {
            let (content, content_type) = ends::answer(text, self.schema());
            self.journal.event(RunEvent::RunContent { content, content_type, reasoning_content: None });
        } else if !begun {
            for part in parts(text) {
                self.journal.event(RunEvent::text(part));
            }
        }
    }
}

impl Pieces {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty()
    }
}

/// Splits a text into what fits into events.
fn parts(mut text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while !text.is_empty() {
        let part = bounds::prefix(text, bounds::PIECE_BYTES);
        parts.push(part);
        text = text.get(part.len()..).unwrap_or_default();
    }
    parts
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn interrupted() -> ModelError {
    ModelError {
        category: ModelErrorCategory::Network,
        message: "The model call was interrupted.".into(),
        status: None,
        retry_after_ms: None,
    }
}

fn metrics(usage: Usage, cost_nano_usd: Option<u64>, first_ms: u64, duration_ms: u64) -> EventMetrics {
    let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens } = usage;
    EventMetrics {
        input_tokens,
        output_tokens,
        total_tokens: input_tokens.saturating_add(output_tokens),
        cache_read_tokens,
        cache_write_tokens,
        reasoning_tokens,
        cost: cost_nano_usd.map(|nano| nano as f64 / 1e9),
        time_to_first_token: Some(first_ms as f64 / 1e3),
        duration: Some(duration_ms as f64 / 1e3),
    }
}
