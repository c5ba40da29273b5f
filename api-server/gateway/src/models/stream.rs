//! Reading an answer's body: a stream of events, or one JSON document from servers that don't stream.

use cadre_protocol::model::{ModelError, ModelErrorCategory};
use serde_json::Value;

use super::sse::{Decoder, Event};
use super::{Answer, Assembler, Sink, assembler};
use crate::config::ModelConfig;
use crate::failure::{failure, protocol};

/// Most bytes of an answer.
const MAX_BYTES: usize = 64 << 20;

/// Reads the answer, delivering pieces as they arrive.
pub(crate) async fn read(
    mut response: reqwest::Response,
    model: &ModelConfig,
    sink: &mut Sink<'_>,
) -> Result<Answer, ModelError> {
    let mut body = Body::new(is_json(&response), assembler(model.api, model.provider));
    let mut bytes = 0_usize;
    while !body.complete() {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                bytes = bytes.saturating_add(chunk.len());
                if bytes > MAX_BYTES {
                    return Err(protocol(format!("the answer is larger than {MAX_BYTES} bytes")));
                }
                body.push(&chunk, sink)?;
            }
            Ok(None) => break,
            Err(_) => {
                let message = format!("the connection to {} broke during the answer", model.provider.as_str());
                return Err(failure(ModelErrorCategory::Network, message));
            }
        }
    }
    body.finish(sink)
}

fn is_json(response: &reqwest::Response) -> bool {
    let kind = response.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().starts_with("application/json"))
}

/// The pure part: bytes in, answer out.
pub(super) struct Body {
    assembler: Box<dyn Assembler>,
    form: Form,
    done: bool,
}

enum Form {
    Events(Decoder),
    Document(Vec<u8>),
}

impl Body {
    pub(super) fn new(json: bool, assembler: Box<dyn Assembler>) -> Self {
        let form = if json { Form::Document(Vec::new()) } else { Form::Events(Decoder::default()) };
        Self { assembler, form, done: false }
    }

    fn complete(&self) -> bool {
        self.done || self.assembler.complete()
    }

    pub(super) fn push(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), ModelError> {
        match &mut self.form {
            Form::Document(document) => document.extend_from_slice(bytes),
            Form::Events(decoder) => {
                let events = decoder.push(bytes).map_err(|_| protocol("an event of the answer is too long"))?;
                for event in events {
                    self.event(&event, sink)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self, sink: &mut Sink<'_>) -> Result<Answer, ModelError> {
        match std::mem::replace(&mut self.form, Form::Document(Vec::new())) {
            Form::Events(decoder) => {
                // An event that the end of the stream cut in half is no event.
                if let Some(event) = decoder.finish().filter(is_whole) {
                    self.event(&event, sink)?;
                }
            }
            Form::Document(document) => {
                let value = serde_json::from_slice(&document).map_err(|_| protocol("the answer is not valid JSON"))?;
                self.assembler.event(&value, sink)?;
                self.assembler.done();
            }
        }
        self.assembler.finish()
    }

    fn event(&mut self, event: &Event, sink: &mut Sink<'_>) -> Result<(), ModelError> {
        let data = event.data.trim();
        if self.done || data.is_empty() {
            return Ok(());
        }
        if data == "[DONE]" {
            self.done = true;
            self.assembler.done();
            return Ok(());
        }
        let mut value: Value =
            serde_json::from_str(data).map_err(|_| protocol("an event of the answer is not valid JSON"))?;
        if let Some(map) = value.as_object_mut().filter(|_| !event.name.is_empty()) {
            map.entry("type").or_insert_with(|| Value::String(event.name.clone()));
        }
        self.assembler.event(&value, sink)
    }
}

fn is_whole(event: &Event) -> bool {
    let data = event.data.trim();
    data == "[DONE]" || serde_json::from_str::<serde::de::IgnoredAny>(data).is_ok()
}
