//! Playing a turn: placeholders, pieces, waits, usage.

use std::time::Duration;

use cadre_protocol::message::{Message, ToolCall};
use cadre_protocol::model::{FinishReason, ModelError, ModelRequest, Usage};
use serde_json::Value;

use super::conversation::Conversation;
use super::script::{Call, Turn};
use crate::models::{Answer, Sink};

const DEFAULT_CHUNK: usize = 16;
const CHARS_PER_TOKEN: usize = 4;
/// Longest text after placeholders were filled, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// Delivers the turn and returns the whole answer, or `error` where the script breaks it off.
pub(super) async fn play(
    turn: &Turn,
    conversation: &Conversation<'_>,
    request: &ModelRequest,
    error: Option<ModelError>,
    sink: &mut Sink<'_>,
) -> Result<Answer, ModelError> {
    wait(turn.delay_ms).await;
    let reasoning = filled(&turn.reasoning, conversation);
    let text = filled(&turn.text, conversation);
    let size = turn.chunk.unwrap_or(DEFAULT_CHUNK);
    let mut first = true;
    for (whole, is_text) in [(&reasoning, false), (&text, true)] {
        for piece in pieces(whole, size) {
            if !std::mem::take(&mut first) {
                wait(turn.chunk_delay_ms).await;
            }
            if is_text { sink.text(piece) } else { sink.reasoning(piece) }
        }
    }
    if let Some(error) = error {
        return Err(error);
    }
    let calls: Vec<ToolCall> =
        turn.tools.iter().enumerate().map(|(index, call)| tool_call(call, index, conversation)).collect();
    if !calls.is_empty() {
        sink.touch();
    }
    let by_default = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
    let usage = usage(&request.messages, &text, &reasoning, &calls);
    let finish = turn.finish.unwrap_or(by_default);
    Ok(Answer { text, reasoning: Some(reasoning), calls, provider_data: None, finish, usage, model_id: None })
}

async fn wait(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

fn tool_call(call: &Call, index: usize, conversation: &Conversation<'_>) -> ToolCall {
    let arguments = match &call.arguments {
        Value::Null => "{}".to_owned(),
        Value::String(text) => filled(text, conversation),
        other => filled_value(other, conversation).to_string(),
    };
    // Unique within the run, and the same whenever the same conversation is continued.
    let tail: String = conversation.id.chars().filter(char::is_ascii_alphanumeric).collect();
    let tail = tail.get(tail.len().saturating_sub(12)..).unwrap_or_default();
    ToolCall { id: format!("call_{tail}_{}_{index}", conversation.turn), name: call.name.clone(), arguments }
}

fn filled_value(value: &Value, conversation: &Conversation<'_>) -> Value {
    match value {
        Value::String(text) => Value::String(filled(text, conversation)),
        Value::Array(list) => list.iter().map(|value| filled_value(value, conversation)).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), filled_value(value, conversation))).collect(),
        other => other.clone(),
    }
}

/// Replaces placeholders, in one pass. Unknown ones stay as they are.
fn filled(template: &str, conversation: &Conversation<'_>) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let value = after.split_once("}}").and_then(|(name, tail)| Some((value_of(name.trim(), conversation)?, tail)));
        match value {
            Some((value, tail)) => {
                out.push_str(value);
                rest = tail;
            }
            None => {
                out.push_str("{{");
                rest = after;
            }
        }
        if out.len() > MAX_TEXT {
            return cut(out, MAX_TEXT);
        }
    }
    out.push_str(rest);
    cut(out, MAX_TEXT)
}

fn value_of<'a>(name: &str, conversation: &'a Conversation<'_>) -> Option<&'a str> {
    Some(match name {
        "input" => &conversation.input,
        "last_result" => conversation.result(None),
        "previous" => conversation.previous(),
        "system" => conversation.system(),
        _ => conversation.result(Some(name.strip_prefix("result.")?)),
    })
}

fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

fn pieces(text: &str, chars: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = rest.char_indices().nth(chars).map_or(rest.len(), |(end, _)| end);
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        (!piece.is_empty()).then_some(piece)
    })
}

fn usage(messages: &[Message], text: &str, reasoning: &str, calls: &[ToolCall]) -> Usage {
    let asked = messages.iter().map(|message| tokens(&message.content) + call_tokens(&message.tool_calls)).sum();
    let thought = tokens(reasoning);
    Usage {
        input_tokens: asked,
        output_tokens: tokens(text) + thought + call_tokens(calls),
        reasoning_tokens: thought,
        ..Usage::default()
    }
}

fn call_tokens(calls: &[ToolCall]) -> u64 {
    calls.iter().map(|call| tokens(&call.name) + tokens(&call.arguments)).sum()
}

fn tokens(text: &str) -> u64 {
    text.chars().count().div_ceil(CHARS_PER_TOKEN) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_once() {
        let conversation = Conversation { input: "{{system}}".to_owned(), ..Conversation::default() };
        let cases = [
            ("a {{input}} b {{ input }}", "a {{system}} b {{system}}"),
            ("{{last_result}}|{{result.shell}}|{{previous}}", "||"),
            ("{{unknown}} {{", "{{unknown}} {{"),
            ("{{{{input}}", "{{{{system}}"),
            ("ünïcode", "ünïcode"),
        ];
        for (template, expected) in cases {
            assert_eq!(filled(template, &conversation), expected, "{template}");
        }
    }

    #[test]
    fn pieces_are_whole_characters() {
        assert_eq!(pieces("añb", 2).collect::<Vec<_>>(), ["añ", "b"]);
        assert_eq!(pieces("", 2).count(), 0);
    }
}
