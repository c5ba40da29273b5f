//! From the neutral request to a Messages body.
//!
//! The API wants turns to alternate, so neighbouring messages of one side become blocks of one message; tool results
//! are blocks of the user's side.

use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::{ModelRequest, ToolChoice};
use serde_json::{Map, Value, json};

use crate::config::{Api, ModelConfig};
use crate::models::carried::{Part, parts};
use crate::models::request::{arguments, set};
use crate::models::{schema, text};

/// The API demands a number; this one fits all models that are in use.
const DEFAULT_MAX_TOKENS: u64 = 8_192;

pub(in crate::models) fn body(model: &ModelConfig, request: &ModelRequest) -> Map<String, Value> {
    let parameters = &model.parameters;
    let (system, rest) = split_system(&request.messages);
    let mut body = Map::new();
    body.insert("model".into(), json!(model.model_id));
    body.insert("max_tokens".into(), json!(parameters.max_output_tokens.unwrap_or(DEFAULT_MAX_TOKENS)));
    body.insert("stream".into(), json!(true));
    if !system.is_empty() {
        body.insert("system".into(), json!([{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]));
    }
    body.insert("messages".into(), messages(rest));
    if !request.tools.is_empty() {
        let tools = request
            .tools
            .iter()
            .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.parameters}));
        body.insert("tools".into(), tools.collect());
        set(&mut body, "tool_choice", request.tool_choice.as_ref().map(tool_choice));
    }
    set(&mut body, "temperature", parameters.temperature);
    set(&mut body, "top_p", parameters.top_p);
    let mut output = Map::new();
    if let Some(effort) = parameters.reasoning_effort.as_deref() {
        let thinks = effort != "none";
        body.insert("thinking".into(), json!({"type": if thinks { "adaptive" } else { "disabled" }}));
        set(&mut output, "effort", thinks.then_some(effort));
    }
    let format = request.output_schema.as_ref();
    set(&mut output, "format", format.map(|it| json!({"type": "json_schema", "schema": schema::closed(it)})));
    if !output.is_empty() {
        body.insert("output_config".into(), Value::Object(output));
    }
    body
}

/// The leading system messages as one text, and what follows them.
fn split_system(messages: &[Message]) -> (String, &[Message]) {
    let end = messages.iter().position(|message| message.role != Role::System).unwrap_or(messages.len());
    let (system, rest) = messages.split_at(end);
    let texts: Vec<&str> = system.iter().map(|it| it.content.as_str()).filter(|text| !text.is_empty()).collect();
    (texts.join("\n\n"), rest)
}

fn messages(messages: &[Message]) -> Value {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in messages {
        let (role, blocks) = match message.role {
            Role::Assistant => ("assistant", assistant(message)),
            Role::Tool => ("user", vec![tool_result(message)]),
            // The API has no instructions in the middle of a conversation.
            Role::User | Role::System => ("user", text_block(&message.content).into_iter().collect()),
        };
        match turns.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            _ if blocks.is_empty() => {}
            _ => turns.push((role, blocks)),
        }
    }
    if turns.first().is_none_or(|(role, _)| *role != "user") {
        turns.insert(0, ("user", vec![json!({"type": "text", "text": "(no message)"})]));
    }
    mark_for_cache(&mut turns);
    turns.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// The next request repeats this one and adds to it: all up to the last block is worth caching.
fn mark_for_cache(turns: &mut [(&str, Vec<Value>)]) {
    if let Some(Value::Object(block)) = turns.last_mut().and_then(|(_, content)| content.last_mut())
        && matches!(block.get("type").and_then(Value::as_str), Some("text" | "tool_result"))
    {
        block.insert("cache_control".into(), json!({"type": "ephemeral"}));
    }
}

/// Empty text blocks are refused by the API.
fn text_block(content: &str) -> Option<Value> {
    (!content.trim().is_empty()).then(|| json!({"type": "text", "text": content}))
}

fn assistant(message: &Message) -> Vec<Value> {
    let block = |part| match part {
        Part::Opaque(value) => thinking(&value),
        Part::Text(content, _) => text_block(content),
        Part::Call(call) => Some(json!({
            "type": "tool_use", "id": id(&call.id), "name": call.name, "input": arguments(&call.arguments)
        })),
    };
    parts(Api::Messages, message).into_iter().filter_map(block).collect()
}

/// A thinking block written anew from its known fields; anything else is dropped.
fn thinking(value: &Value) -> Option<Value> {
    match (text(value, "/type"), text(value, "/signature"), text(value, "/data")) {
        ("thinking", signature, _) if !signature.is_empty() => {
            Some(json!({"type": "thinking", "thinking": text(value, "/thinking"), "signature": signature}))
        }
        ("redacted_thinking", _, data) if !data.is_empty() => Some(json!({"type": "redacted_thinking", "data": data})),
        _ => None,
    }
}

fn tool_result(message: &Message) -> Value {
    let mut block = json!({
        "type": "tool_result",
        "tool_use_id": id(message.tool_call_id.as_deref().unwrap_or_default()),
        "content": message.content,
    });
    if message.tool_call_error {
        block["is_error"] = json!(true);
    }
    block
}

/// The API takes only letters, digits, `_` and `-`; a conversation may come from another provider.
fn id(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!({"type": "auto"}),
        ToolChoice::None => json!({"type": "none"}),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::Tool(name) => json!({"type": "tool", "name": name}),
    }
}
