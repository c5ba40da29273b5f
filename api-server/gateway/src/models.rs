//! The provider formats: from a neutral request to a body, from a stream of events to an answer.

mod anthropic;
#[cfg(test)]
mod assembly_tests;
mod carried;
mod openai_chat;
mod openai_responses;
mod request;
mod schema;
mod sse;
mod stream;

use cadre_protocol::message::ToolCall;
use cadre_protocol::model::{FinishReason, ModelDelta, ModelError, ModelErrorCategory, Usage};
use serde_json::Value;
use tokio::time::{Duration, Instant};

use crate::config::{Api, Provider};
use crate::failure::failure;

pub(crate) use request::{body, endpoint};
pub(crate) use stream::read;

/// Puts an answer together from the events of one API. Never panics, whatever the events are.
pub(crate) trait Assembler: Send {
    /// Takes one event.
    ///
    /// # Errors
    /// If the event reports a failure or makes no sense.
    fn event(&mut self, event: &Value, sink: &mut Sink<'_>) -> Result<(), ModelError>;

    /// The provider says that the stream is over.
    fn done(&mut self) {}

    /// Whether nothing more needs to be read.
    fn complete(&self) -> bool;

    /// The answer.
    ///
    /// # Errors
    /// If it is not complete.
    fn finish(self: Box<Self>) -> Result<Answer, ModelError>;
}

/// The assembler of an API.
pub(crate) fn assembler(api: Api, provider: Provider) -> Box<dyn Assembler> {
    match api {
        Api::Messages => Box::new(anthropic::Assembly::new(provider)),
        Api::Responses => Box::new(openai_responses::Assembly::new(provider)),
        Api::ChatCompletions => Box::new(openai_chat::Assembly::new(provider)),
    }
}

/// The stream ended before the answer did.
fn cut_short(provider: Provider) -> ModelError {
    failure(ModelErrorCategory::Network, format!("{} ended the answer before it was complete", provider.as_str()))
}

/// A text field of an event, empty if there is none.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A number of an event.
fn number(value: &Value, pointer: &str) -> Option<u64> {
    value.pointer(pointer).and_then(Value::as_u64)
}

/// A complete answer, before it is measured and priced.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) reasoning: Option<String>,
    /// Calls; an id is empty if the provider gave none.
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) provider_data: Option<Value>,
    pub(crate) finish: FinishReason,
    pub(crate) usage: Usage,
    /// The id that the provider reports, perhaps more exact than the one asked for.
    pub(crate) model_id: Option<String>,
}

/// Where an attempt puts what arrives; it also knows when the first piece did.
pub(crate) struct Sink<'a> {
    deltas: &'a mut (dyn FnMut(ModelDelta) + Send),
    started: Instant,
    first_piece: Option<Duration>,
    delivered: bool,
    begun: bool,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(deltas: &'a mut (dyn FnMut(ModelDelta) + Send), started: Instant) -> Self {
        Self { deltas, started, first_piece: None, delivered: false, begun: false }
    }

    /// A piece of the answer has arrived that nobody is shown, such as a part of a tool call.
    pub(crate) fn touch(&mut self) {
        self.first_piece.get_or_insert_with(|| self.started.elapsed());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.deliver(text, ModelDelta::Text);
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        self.deliver(text, ModelDelta::Reasoning);
    }

    fn deliver(&mut self, text: &str, kind: fn(String) -> ModelDelta) {
        if !text.is_empty() {
            self.touch();
            self.delivered = true;
            (self.deltas)(kind(text.to_owned()));
        }
    }

    /// Whether the caller has seen a part of the answer, so that the call can't begin anew.
    pub(crate) fn delivered(&self) -> bool {
        self.delivered
    }

    /// The provider has taken the request: from now on it costs something.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Whether the attempt may have cost something.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun || self.first_piece.is_some()
    }

    /// Forgets the pieces of an attempt that failed.
    pub(crate) fn restart(&mut self) {
        self.first_piece = None;
        self.begun = false;
    }

    /// Time from the request to the first piece.
    pub(crate) fn first_piece(&self) -> Option<Duration> {
        self.first_piece
    }
}
