//! From Messages events to an answer.

use std::collections::BTreeMap;

use cadre_protocol::message::ToolCall;
use cadre_protocol::model::{FinishReason, ModelError, Usage};
use serde_json::{Value, json};

use crate::config::{Api, Provider};
use crate::failure::from_event;
use crate::models::carried::{Slot, pack};
use crate::models::{Answer, Assembler, Sink, cut_short, number, text};

/// Blocks by index, and what the message says of itself.
#[derive(Debug)]
pub(in crate::models) struct Assembly {
    provider: Provider,
    blocks: BTreeMap<u64, Block>,
    counts: Counts,
    model_id: String,
    stop_reason: Option<String>,
    stopped: bool,
}

#[derive(Debug)]
enum Block {
    Text(String),
    Thinking {
        thinking: String,
        signature: String,
    },
    Redacted(String),
    Tool {
        id: String,
        name: String,
        input: Value,
        json: String,
    },
    /// Of a kind that we did not ask for.
    Other,
}

/// Token counts as the API gives them: `input` does not include cached tokens.
#[derive(Debug, Default)]
struct Counts {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    thinking: u64,
}

impl Assembly {
    pub(in crate::models) fn new(provider: Provider) -> Self {
        Self {
            provider,
            blocks: BTreeMap::new(),
            counts: Counts::default(),
            model_id: String::new(),
            stop_reason: None,
            stopped: false,
        }
    }

    fn start_block(&mut self, index: u64, block: &Value, sink: &mut Sink<'_>) {
        if self.blocks.contains_key(&index) {
            return;
        }
        let field = |name: &str| text(block, name).to_owned();
        let block = match text(block, "/type") {
            "text" => Block::Text(field("/text")),
            "thinking" => Block::Thinking { thinking: field("/thinking"), signature: field("/signature") },
            "redacted_thinking" => Block::Redacted(field("/data")),
            "tool_use" => Block::Tool {
                id: field("/id"),
                name: field("/name"),
                input: block.get("input").cloned().unwrap_or_default(),
                json: String::new(),
            },
            _ => Block::Other,
        };
        match &block {
            Block::Text(text) => sink.text(text),
            Block::Thinking { thinking, .. } => sink.reasoning(thinking),
            Block::Redacted(_) | Block::Tool { .. } => sink.touch(),
            Block::Other => {}
        }
        self.blocks.insert(index, block);
    }

    fn extend_block(&mut self, index: u64, delta: &Value, sink: &mut Sink<'_>) {
        match (self.blocks.get_mut(&index), text(delta, "/type")) {
            (Some(Block::Text(whole)), "text_delta") => {
                let piece = text(delta, "/text");
                whole.push_str(piece);
                sink.text(piece);
            }
            (Some(Block::Thinking { thinking, .. }), "thinking_delta") => {
                let piece = text(delta, "/thinking");
                thinking.push_str(piece);
                sink.reasoning(piece);
            }
            (Some(Block::Thinking { signature, .. }), "signature_delta") => {
                signature.push_str(text(delta, "/signature"));
            }
            (Some(Block::Tool { json, .. }), "input_json_delta") => json.push_str(text(delta, "/partial_json")),
            _ => {}
        }
    }

    fn count(&mut self, usage: Option<&Value>) {
        let Some(usage) = usage else { return };
        let Counts { input, output, cache_read, cache_write, thinking } = &mut self.counts;
        for (count, pointer) in [
            (input, "/input_tokens"),
            (output, "/output_tokens"),
            (cache_read, "/cache_read_input_tokens"),
            (cache_write, "/cache_creation_input_tokens"),
            (thinking, "/output_tokens_details/thinking_tokens"),
        ] {
            *count = number(usage, pointer).unwrap_or(*count);
        }
    }
}

impl Assembler for Assembly {
    fn event(&mut self, event: &Value, sink: &mut Sink<'_>) -> Result<(), ModelError> {
        let index = number(event, "/index").unwrap_or_default();
        match text(event, "/type") {
            "message_start" => {
                text(event, "/message/model").clone_into(&mut self.model_id);
                self.count(event.pointer("/message/usage"));
            }
            "content_block_start" => self.start_block(index, &event["content_block"], sink),
            "content_block_delta" => self.extend_block(index, &event["delta"], sink),
            "message_delta" => {
                let reason = event.pointer("/delta/stop_reason").and_then(Value::as_str);
                self.stop_reason = reason.map(str::to_owned).or(self.stop_reason.take());
                self.count(event.get("usage"));
            }
            "message_stop" => self.stopped = true,
            "error" => return Err(from_event(self.provider.as_str(), event)),
            _ => {}
        }
        Ok(())
    }

    fn complete(&self) -> bool {
        self.stopped
    }

    fn finish(self: Box<Self>) -> Result<Answer, ModelError> {
        if !self.stopped && self.stop_reason.is_none() {
            return Err(cut_short(self.provider));
        }
        let (mut said, mut reasoning) = (String::new(), String::new());
        let (mut calls, mut slots) = (Vec::new(), Vec::new());
        for block in self.blocks.into_values() {
            match block {
                Block::Text(text) => {
                    said.push_str(&text);
                    slots.push(Slot::Text { bytes: text.len(), mark: None });
                }
                Block::Thinking { thinking, signature } => {
                    reasoning.push_str(&thinking);
                    if !signature.is_empty() {
                        let block = json!({"type": "thinking", "thinking": thinking, "signature": signature});
                        slots.push(Slot::Opaque(block));
                    }
                }
                Block::Redacted(data) => slots.push(Slot::Opaque(json!({"type": "redacted_thinking", "data": data}))),
                Block::Tool { id, name, input, json } => {
                    calls.push(tool_call(id, name, &input, json));
                    slots.push(Slot::Call);
                }
                Block::Other => {}
            }
        }
        Ok(Answer {
            finish: finish(self.stop_reason.as_deref(), &calls),
            text: said,
            reasoning: Some(reasoning),
            calls,
            provider_data: pack(Api::Messages, slots),
            usage: usage(&self.counts),
            model_id: Some(self.model_id),
        })
    }
}

fn tool_call(id: String, name: String, input: &Value, json: String) -> ToolCall {
    let arguments = match (json.is_empty(), input) {
        (false, _) => json,
        (true, Value::Null) => "{}".to_owned(),
        (true, input) => input.to_string(),
    };
    ToolCall { id, name, arguments }
}

fn finish(reason: Option<&str>, calls: &[ToolCall]) -> FinishReason {
    match reason {
        Some("max_tokens" | "model_context_window_exceeded") => FinishReason::Length,
        Some("refusal") => FinishReason::ContentFilter,
        _ if !calls.is_empty() => FinishReason::ToolCalls,
        _ => FinishReason::Stop,
    }
}

fn usage(counts: &Counts) -> Usage {
    Usage {
        input_tokens: counts.input.saturating_add(counts.cache_read).saturating_add(counts.cache_write),
        output_tokens: counts.output,
        cache_read_tokens: counts.cache_read,
        cache_write_tokens: counts.cache_write,
        reasoning_tokens: counts.thinking,
    }
}
