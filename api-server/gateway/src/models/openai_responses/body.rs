//! From the neutral request to a Responses body.

use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::{ModelRequest, ToolChoice};
use serde_json::{Map, Value, json};

use crate::config::{Api, ModelConfig};
use crate::models::carried::{Part, parts};
use crate::models::request::{arguments, set};
use crate::models::{schema, text};

pub(in crate::models) fn body(model: &ModelConfig, request: &ModelRequest) -> Map<String, Value> {
    let parameters = &model.parameters;
    let mut body = Map::new();
    body.insert("model".into(), json!(model.model_id));
    body.insert("input".into(), request.messages.iter().flat_map(items).collect());
    body.insert("stream".into(), json!(true));
    body.insert("store".into(), json!(false));
    if reasons(model) {
        // Nothing is stored, so reasoning has to travel with the conversation.
        body.insert("include".into(), json!(["reasoning.encrypted_content"]));
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function", "name": tool.name, "description": tool.description,
                "parameters": tool.parameters, "strict": false,
            })
        });
        body.insert("tools".into(), tools.collect());
        set(&mut body, "tool_choice", request.tool_choice.as_ref().map(tool_choice));
    }
    set(&mut body, "text", request.output_schema.as_ref().map(|output| json!({"format": format(output)})));
    set(&mut body, "reasoning", parameters.reasoning_effort.as_ref().map(|effort| json!({"effort": effort})));
    set(&mut body, "temperature", parameters.temperature);
    set(&mut body, "top_p", parameters.top_p);
    set(&mut body, "max_output_tokens", parameters.max_output_tokens);
    body
}

/// Whether the model reasons. Others answer 400 to a request for encrypted reasoning.
fn reasons(model: &ModelConfig) -> bool {
    if let Some(effort) = &model.parameters.reasoning_effort {
        return effort != "none";
    }
    let id = model.model_id.to_ascii_lowercase();
    let id = id.rsplit('/').next().unwrap_or_default();
    let digit = |rest: &str, least: char| rest.starts_with(|c: char| c.is_ascii_digit() && c >= least);
    let o_series = id.strip_prefix('o').is_some_and(|rest| digit(rest, '1'));
    let gpt = id.strip_prefix("gpt-").is_some_and(|rest| digit(rest, '5')) && !id.contains("-chat");
    o_series || gpt || id.starts_with("codex")
}

fn items(message: &Message) -> Vec<Value> {
    match message.role {
        Role::System => vec![input("system", &message.content)],
        Role::User => vec![input("user", &message.content)],
        Role::Tool => vec![json!({
            "type": "function_call_output", "call_id": message.tool_call_id.as_deref().unwrap_or_default(),
            "output": message.content,
        })],
        Role::Assistant => parts(Api::Responses, message).into_iter().filter_map(assistant).collect(),
    }
}

fn input(role: &str, content: &str) -> Value {
    json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": content}]})
}

fn assistant(part: Part<'_>) -> Option<Value> {
    match part {
        Part::Opaque(value) => reasoning(&value),
        Part::Text("", _) => None,
        Part::Text(content, phase) => {
            let mut item = json!({
                "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": content}]
            });
            if let Some(phase @ ("commentary" | "final_answer")) = phase.as_deref() {
                item["phase"] = json!(phase);
            }
            Some(item)
        }
        Part::Call(call) => Some(json!({
            "type": "function_call", "call_id": call.id, "name": call.name,
            "arguments": arguments(&call.arguments).to_string(),
        })),
    }
}

/// A reasoning item written anew from its known fields, without the id of an object that was never stored.
fn reasoning(value: &Value) -> Option<Value> {
    let encrypted = text(value, "/encrypted_content");
    let is_reasoning = text(value, "/type") == "reasoning" && !encrypted.is_empty();
    let summary = value["summary"].as_array().into_iter().flatten();
    let summary: Value = summary.map(|part| json!({"type": "summary_text", "text": text(part, "/text")})).collect();
    is_reasoning.then(|| json!({"type": "reasoning", "summary": summary, "encrypted_content": encrypted}))
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Tool(name) => json!({"type": "function", "name": name}),
    }
}

fn format(output: &Value) -> Value {
    let schema = schema::closed(output);
    let strict = schema::is_strict(&schema);
    json!({"type": "json_schema", "name": "answer", "schema": schema, "strict": strict})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_models_are_recognised() {
        let cases = [
            ("gpt-5", true),
            ("gpt-5.2-codex", true),
            ("openai/gpt-5-mini", true),
            ("o3", true),
            ("o4-mini", true),
            ("codex-mini-latest", true),
            ("gpt-4.1", false),
            ("gpt-4o", false),
            ("gpt-5-chat-latest", false),
            ("other", false),
        ];
        for (id, expected) in cases {
            let model = ModelConfig { model_id: id.into(), ..ModelConfig::scripted("n", "m", None) };
            assert_eq!(reasons(&model), expected, "{id}");
        }
    }
}
