//! From Chat Completions chunks to an answer.
//!
//! Compatible servers differ in small things, all of which are met here: fragments without an index, one index for all
//! calls, ids that are missing or repeated, arguments as an object, reasoning under two names, content in parts, a
//! `stop` after tool calls, a missing `[DONE]`, an error object in mid-stream, a whole answer instead of a stream.

use cadre_protocol::message::ToolCall;
use cadre_protocol::model::{FinishReason, ModelError, Usage};
use serde_json::{Value, json};

use crate::config::{Api, Provider};
use crate::failure::{from_event, protocol};
use crate::models::{Answer, Assembler, Sink, cut_short, number, text};

#[derive(Debug)]
pub(in crate::models) struct Assembly {
    provider: Provider,
    text: String,
    reasoning: String,
    reasoning_field: Option<&'static str>,
    refused: bool,
    calls: Vec<Call>,
    usage: Option<Usage>,
    model_id: String,
    finish_reason: Option<String>,
    /// Whether the usage came with or after the reason to stop, and so is the last one.
    counted: bool,
    done: bool,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl Assembly {
    pub(in crate::models) fn new(provider: Provider) -> Self {
        Self {
            provider,
            text: String::new(),
            reasoning: String::new(),
            reasoning_field: None,
            refused: false,
            calls: Vec::new(),
            usage: None,
            model_id: String::new(),
            finish_reason: None,
            counted: false,
            done: false,
        }
    }

    fn choice(&mut self, choice: &Value, sink: &mut Sink<'_>) -> Result<(), ModelError> {
        for name in ["delta", "message"] {
            if let Some(delta) = choice.get(name).filter(|delta| delta.is_object()) {
                self.message(delta, sink);
            }
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str).filter(|reason| !reason.is_empty()) {
            if reason == "error" {
                return Err(from_event(self.provider.as_str(), choice));
            }
            self.finish_reason = Some(reason.to_owned());
        }
        Ok(())
    }

    fn message(&mut self, delta: &Value, sink: &mut Sink<'_>) {
        for field in ["reasoning_content", "reasoning"] {
            if let Some(piece) = delta.get(field).and_then(Value::as_str).filter(|piece| !piece.is_empty()) {
                self.reasoning_field = Some(field);
                self.reasoning.push_str(piece);
                sink.reasoning(piece);
                break;
            }
        }
        self.content(&delta["content"], sink);
        if let Some(refusal) = delta.get("refusal").and_then(Value::as_str).filter(|text| !text.is_empty()) {
            self.refused = true;
            self.say(refusal, sink);
        }
        for fragment in delta["tool_calls"].as_array().into_iter().flatten() {
            sink.touch();
            self.fragment(fragment);
        }
    }

    fn content(&mut self, content: &Value, sink: &mut Sink<'_>) {
        match content {
            Value::String(piece) => self.say(piece, sink),
            Value::Array(parts) => {
                for part in parts {
                    self.say(text(part, "/text"), sink);
                }
            }
            _ => {}
        }
    }

    fn say(&mut self, piece: &str, sink: &mut Sink<'_>) {
        self.text.push_str(piece);
        sink.text(piece);
    }

    fn fragment(&mut self, fragment: &Value) {
        let index = number(fragment, "/index");
        let (id, name) = (text(fragment, "/id"), text(fragment, "/function/name"));
        // Without index and id, a name is all that tells where a call begins.
        let anew = index.is_none() && id.is_empty() && !name.is_empty();
        let position = self.calls.iter().rposition(|call| {
            let same_index = index.is_none() || call.index == index;
            let same_id = id.is_empty() || call.id.is_empty() || call.id == id;
            same_index && same_id
        });
        let at = match position {
            Some(at) if !anew => at,
            _ => {
                self.calls.push(Call { index, ..Call::default() });
                self.calls.len() - 1
            }
        };
        let Some(call) = self.calls.get_mut(at) else { return };
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            name.clone_into(&mut call.name);
        }
        match fragment.pointer("/function/arguments") {
            Some(Value::String(piece)) => call.arguments.push_str(piece),
            Some(object @ Value::Object(_)) => call.arguments = object.to_string(),
            _ => {}
        }
    }

    fn finish_reason(&self) -> FinishReason {
        match self.finish_reason.as_deref() {
            Some("length") => FinishReason::Length,
            Some("content_filter") => FinishReason::ContentFilter,
            _ if !self.calls.is_empty() => FinishReason::ToolCalls,
            _ if self.refused => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        }
    }
}

impl Assembler for Assembly {
    fn event(&mut self, event: &Value, sink: &mut Sink<'_>) -> Result<(), ModelError> {
        if event.get("error").is_some_and(|error| !error.is_null()) {
            return Err(from_event(self.provider.as_str(), event));
        }
        if self.model_id.is_empty() {
            text(event, "/model").clone_into(&mut self.model_id);
        }
        if let Some(choice) = event.pointer("/choices/0") {
            self.choice(choice, sink)?;
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(read_usage(usage));
            self.counted = self.finish_reason.is_some();
        }
        Ok(())
    }

    fn done(&mut self) {
        self.done = true;
    }

    fn complete(&self) -> bool {
        self.done || self.counted
    }

    fn finish(self: Box<Self>) -> Result<Answer, ModelError> {
        let empty = self.text.is_empty() && self.calls.is_empty() && self.reasoning.is_empty();
        match (&self.finish_reason, self.done) {
            (None, false) => return Err(cut_short(self.provider)),
            (None, true) if empty => return Err(protocol("the answer is empty")),
            _ => {}
        }
        Ok(Answer {
            finish: self.finish_reason(),
            provider_data: self
                .reasoning_field
                .map(|field| json!({"api": Api::ChatCompletions.as_str(), "reasoningField": field})),
            text: self.text,
            reasoning: Some(self.reasoning),
            calls: self.calls.into_iter().map(tool_call).collect(),
            usage: self.usage.unwrap_or_default(),
            model_id: Some(self.model_id),
        })
    }
}

fn tool_call(call: Call) -> ToolCall {
    let Call { index: _, id, name, arguments } = call;
    let arguments = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
    ToolCall { id, name, arguments }
}

fn read_usage(usage: &Value) -> Usage {
    let count = |pointer: &str| number(usage, pointer).unwrap_or_default();
    Usage {
        input_tokens: count("/prompt_tokens"),
        output_tokens: count("/completion_tokens"),
        cache_read_tokens: number(usage, "/prompt_tokens_details/cached_tokens")
            .unwrap_or_else(|| count("/prompt_cache_hit_tokens")),
        cache_write_tokens: count("/prompt_tokens_details/cache_write_tokens"),
        reasoning_tokens: count("/completion_tokens_details/reasoning_tokens"),
    }
}
