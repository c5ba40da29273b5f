//! From Responses events to an answer.
//!
//! Pieces are shown as they arrive; what counts in the end are the finished items, of which the last event repeats all.

use std::collections::BTreeMap;

use cadre_protocol::message::ToolCall;
use cadre_protocol::model::{FinishReason, ModelError, Usage};
use serde_json::{Value, json};

use crate::config::{Api, Provider};
use crate::failure::from_event;
use crate::models::carried::{Slot, pack};
use crate::models::{Answer, Assembler, Sink, cut_short, number, text};

#[derive(Debug)]
pub(in crate::models) struct Assembly {
    provider: Provider,
    items: BTreeMap<u64, Item>,
    reasoning: String,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    finish: FinishReason,
    usage: Usage,
    model_id: String,
}

/// An item of the output.
#[derive(Debug, Default)]
struct Item {
    kind: Kind,
    /// Text or arguments so far.
    text: String,
    refused: bool,
    /// The item as its last event gave it.
    whole: Value,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    Message,
    Call,
    Reasoning,
    #[default]
    Other,
}

impl Kind {
    fn of(item: &Value) -> Self {
        match text(item, "/type") {
            "message" => Self::Message,
            "function_call" => Self::Call,
            "reasoning" => Self::Reasoning,
            _ => Self::Other,
        }
    }
}

impl Assembly {
    pub(in crate::models) fn new(provider: Provider) -> Self {
        Self { provider, items: BTreeMap::new(), reasoning: String::new(), end: None }
    }

    /// The item at `index`, which is of `kind` unless an earlier event said otherwise.
    fn item(&mut self, index: u64, kind: Kind) -> &mut Item {
        let item = self.items.entry(index).or_default();
        if item.kind == Kind::Other {
            item.kind = kind;
        }
        item
    }

    fn say(&mut self, index: u64, piece: &str, refused: bool, sink: &mut Sink<'_>) {
        let item = self.item(index, Kind::Message);
        if item.kind == Kind::Message {
            item.text.push_str(piece);
            item.refused |= refused;
            sink.text(piece);
        }
    }

    fn think(&mut self, piece: &str, sink: &mut Sink<'_>) {
        self.reasoning.push_str(piece);
        sink.reasoning(piece);
    }

    /// A finished item. What its deltas did not bring is delivered now.
    fn finished(&mut self, index: u64, whole: &Value, sink: &mut Sink<'_>) {
        let kind = Kind::of(whole);
        let item = self.item(index, kind);
        if item.kind != kind {
            return;
        }
        item.whole = whole.clone();
        match kind {
            Kind::Message => {
                let (said, refused) = message_text(whole);
                let rest = said.strip_prefix(item.text.as_str()).unwrap_or_default().to_owned();
                self.say(index, &rest, refused, sink);
            }
            Kind::Call => {
                sink.touch();
                text(whole, "/arguments").clone_into(&mut item.text);
            }
            Kind::Reasoning if self.reasoning.is_empty() => {
                let summary = summary_text(whole);
                self.think(&summary, sink);
            }
            Kind::Reasoning | Kind::Other => {}
        }
    }

    fn ended(&mut self, response: &Value, sink: &mut Sink<'_>) {
        for (index, whole) in (0..).zip(response["output"].as_array().into_iter().flatten()) {
            if self.items.get(&index).is_none_or(|item| item.whole.is_null()) {
                self.finished(index, whole, sink);
            }
        }
        let finish = match text(response, "/incomplete_details/reason") {
            "" => FinishReason::Stop,
            "content_filter" => FinishReason::ContentFilter,
            _ => FinishReason::Length,
        };
        let usage = read_usage(&response["usage"]);
        self.end = Some(End { finish, usage, model_id: text(response, "/model").to_owned() });
    }
}

impl Assembler for Assembly {
    fn event(&mut self, event: &Value, sink: &mut Sink<'_>) -> Result<(), ModelError> {
        let index = number(event, "/output_index").unwrap_or_default();
        let failed = |error: &Value| Err(from_event(self.provider.as_str(), error));
        match text(event, "/type") {
            "response.output_item.added" => {
                sink.touch();
                self.item(index, Kind::of(&event["item"]));
            }
            "response.output_text.delta" => self.say(index, text(event, "/delta"), false, sink),
            "response.refusal.delta" => self.say(index, text(event, "/delta"), true, sink),
            "response.function_call_arguments.delta" => {
                self.item(index, Kind::Call).text.push_str(text(event, "/delta"));
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.think(text(event, "/delta"), sink);
            }
            "response.reasoning_summary_part.added" if !self.reasoning.is_empty() => self.think("\n\n", sink),
            "response.output_item.done" => self.finished(index, &event["item"], sink),
            "response.completed" | "response.incomplete" => self.ended(&event["response"], sink),
            "response.failed" => return failed(&event["response"]),
            "error" => return failed(event),
            // A server that does not stream.
            "" if text(event, "/object") == "response" => match text(event, "/status") {
                "failed" => return failed(event),
                _ => self.ended(event, sink),
            },
            _ => {}
        }
        Ok(())
    }

    fn complete(&self) -> bool {
        self.end.is_some()
    }

    fn finish(self: Box<Self>) -> Result<Answer, ModelError> {
        let End { mut finish, usage, model_id } = self.end.ok_or_else(|| cut_short(self.provider))?;
        let (mut said, mut calls, mut slots) = (String::new(), Vec::new(), Vec::new());
        for item in self.items.into_values() {
            match item.kind {
                Kind::Message => {
                    said.push_str(&item.text);
                    let mark = item.whole.get("phase").and_then(Value::as_str).map(str::to_owned);
                    slots.push(Slot::Text { bytes: item.text.len(), mark });
                    if item.refused && finish == FinishReason::Stop {
                        finish = FinishReason::ContentFilter;
                    }
                }
                Kind::Call => {
                    calls.push(tool_call(item));
                    slots.push(Slot::Call);
                }
                Kind::Reasoning => slots.extend(carried(&item.whole).map(Slot::Opaque)),
                Kind::Other => {}
            }
        }
        if !calls.is_empty() && finish == FinishReason::Stop {
            finish = FinishReason::ToolCalls;
        }
        Ok(Answer {
            text: said,
            reasoning: Some(self.reasoning),
            calls,
            provider_data: pack(Api::Responses, slots),
            finish,
            usage,
            model_id: Some(model_id),
        })
    }
}

fn tool_call(item: Item) -> ToolCall {
    ToolCall {
        id: text(&item.whole, "/call_id").to_owned(),
        name: text(&item.whole, "/name").to_owned(),
        arguments: if item.text.trim().is_empty() { "{}".to_owned() } else { item.text },
    }
}

/// Text of a message item, and whether it is a refusal.
fn message_text(item: &Value) -> (String, bool) {
    let mut said = (String::new(), false);
    for part in item["content"].as_array().into_iter().flatten() {
        said.0.push_str(text(part, "/text"));
        said.0.push_str(text(part, "/refusal"));
        said.1 |= text(part, "/type") == "refusal";
    }
    said
}

fn summary_text(item: &Value) -> String {
    let parts: Vec<&str> = item["summary"].as_array().into_iter().flatten().map(|part| text(part, "/text")).collect();
    parts.join("\n\n")
}

/// What the next request must bring back of a reasoning item.
fn carried(item: &Value) -> Option<Value> {
    let encrypted = text(item, "/encrypted_content");
    (!encrypted.is_empty())
        .then(|| json!({"type": "reasoning", "summary": item["summary"], "encrypted_content": encrypted}))
}

fn read_usage(usage: &Value) -> Usage {
    let count = |pointer: &str| number(usage, pointer).unwrap_or_default();
    Usage {
        input_tokens: count("/input_tokens"),
        output_tokens: count("/output_tokens"),
        cache_read_tokens: count("/input_tokens_details/cached_tokens"),
        cache_write_tokens: count("/input_tokens_details/cache_write_tokens"),
        reasoning_tokens: count("/output_tokens_details/reasoning_tokens"),
    }
}
