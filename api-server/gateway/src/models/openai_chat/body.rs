//! From the neutral request to a Chat Completions body.

use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::model::{ModelRequest, ToolChoice};
use serde_json::{Map, Value, json};

use crate::config::{ModelConfig, Provider};
use crate::models::request::{arguments, set};
use crate::models::{schema, text};

pub(in crate::models) fn body(model: &ModelConfig, request: &ModelRequest) -> Map<String, Value> {
    let parameters = &model.parameters;
    let mut body = Map::new();
    body.insert("model".into(), json!(model.model_id));
    body.insert("messages".into(), messages(&request.messages));
    body.insert("stream".into(), json!(true));
    body.insert("stream_options".into(), json!({"include_usage": true}));
    // Compatible servers know the old name, and some refuse fields that they don't know.
    let own = model.provider == Provider::OpenAI;
    let limit = if own { "max_completion_tokens" } else { "max_tokens" };
    set(&mut body, "store", own.then_some(false));
    set(&mut body, limit, parameters.max_output_tokens);
    set(&mut body, "temperature", parameters.temperature);
    set(&mut body, "top_p", parameters.top_p);
    set(&mut body, "reasoning_effort", parameters.reasoning_effort.as_deref());
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.parameters
            }})
        });
        body.insert("tools".into(), tools.collect());
        set(&mut body, "tool_choice", request.tool_choice.as_ref().map(tool_choice));
    }
    set(&mut body, "response_format", request.output_schema.as_ref().map(response_format));
    body
}

fn messages(messages: &[Message]) -> Value {
    let user = messages.iter().rposition(|message| message.role == Role::User);
    let in_turn = |index: usize| user.is_none_or(|user| index > user);
    let one = |(index, message): (usize, &Message)| match message.role {
        Role::System => json!({"role": "system", "content": message.content}),
        Role::User => json!({"role": "user", "content": message.content}),
        Role::Assistant => assistant(message, in_turn(index)),
        Role::Tool => json!({
            "role": "tool", "tool_call_id": message.tool_call_id.as_deref().unwrap_or_default(),
            "content": message.content,
        }),
    };
    messages.iter().enumerate().map(one).collect()
}

fn assistant(message: &Message, in_turn: bool) -> Value {
    let mut out = Map::new();
    out.insert("role".into(), json!("assistant"));
    let only_calls = message.content.is_empty() && !message.tool_calls.is_empty();
    out.insert("content".into(), if only_calls { Value::Null } else { json!(message.content) });
    if !message.tool_calls.is_empty() {
        out.insert("tool_calls".into(), message.tool_calls.iter().map(tool_call).collect());
    }
    // DeepSeek, Kimi and others want the reasoning back while a turn's tools run, and not later.
    let field = message.provider_data.as_ref().map_or("", |data| text(data, "/reasoningField"));
    if in_turn && !message.tool_calls.is_empty() && matches!(field, "reasoning_content" | "reasoning") {
        set(&mut out, field, message.reasoning.as_deref());
    }
    Value::Object(out)
}

fn tool_call(call: &ToolCall) -> Value {
    // Servers parse this text to fill their prompt template, and fail if it is malformed.
    let arguments = arguments(&call.arguments).to_string();
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
    }
}

fn response_format(output: &Value) -> Value {
    let schema = schema::closed(output);
    let strict = schema::is_strict(&schema);
    json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}})
}
