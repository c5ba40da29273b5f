//! Messages of a conversation.

use cadre_protocol::message::{Message, Role, ToolCall};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::time::seconds;

/// A message.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageOutput {
    /// Unique id.
    pub id: String,
    /// Text.
    pub content: String,
    /// Whether it comes from an earlier run.
    pub from_history: bool,
    /// Whether the run ends with this tool call.
    pub stop_after_tool_call: bool,
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Unix seconds.
    pub created_at: u64,
    /// Calls that an assistant message asks for: `{id, type, function: {name, arguments}}`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub tool_calls: Vec<Value>,
    /// The call that a tool message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Its tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub tool_args: Option<Map<String, Value>>,
    /// Whether the tool failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_error: Option<bool>,
    /// The model's visible reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

/// Messages of one run, oldest first; tool messages show the arguments of the call that they answer.
#[must_use]
pub fn messages(messages: Vec<Message>) -> Vec<MessageOutput> {
    let mut calls: Vec<ToolCall> = Vec::new();
    let mut rendered = Vec::with_capacity(messages.len());
    for message in messages {
        calls.extend(message.tool_calls.iter().cloned());
        rendered.push(one(message, &calls));
    }
    rendered
}

fn one(message: Message, calls: &[ToolCall]) -> MessageOutput {
    // Provider data is for the provider: signatures and encrypted reasoning are no use to a client.
    let Message {
        id,
        role,
        content,
        tool_calls,
        tool_call_id,
        tool_name,
        tool_call_error,
        reasoning,
        stand_in: _,
        provider_data: _,
        created_at_ms,
    } = message;
    let answered = tool_call_id.as_ref().and_then(|id| calls.iter().find(|call| call.id == *id));
    MessageOutput {
        id,
        content,
        from_history: false,
        stop_after_tool_call: false,
        role: role_name(role).to_owned(),
        created_at: seconds(created_at_ms),
        tool_calls: tool_calls.into_iter().map(tool_call).collect(),
        tool_args: answered.and_then(|call| serde_json::from_str(&call.arguments).ok()),
        tool_call_error: tool_call_id.is_some().then_some(tool_call_error),
        tool_call_id,
        tool_name,
        reasoning_content: reasoning,
    }
}

fn tool_call(call: ToolCall) -> Value {
    let ToolCall { id, name, arguments } = call;
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// As clients read it.
#[must_use]
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_message_names_its_call() {
        let call = ToolCall { id: "c1".into(), name: "add".into(), arguments: r#"{"a":1}"#.into() };
        let asks = Message {
            id: "m1".into(),
            tool_calls: vec![call.clone()],
            provider_data: Some(json!("secret")),
            ..Message::text(Role::Assistant, "", 1_796_007_354_123)
        };
        let answers = Message { id: "m2".into(), ..Message::tool_result(&call, "1", false, 1_796_007_355_000) };
        assert_eq!(
            serde_json::to_value(messages(vec![asks, answers])).unwrap(),
            json!([
                {"id": "m1", "content": "", "from_history": false, "stop_after_tool_call": false, "role": "assistant",
                 "created_at": 1_796_007_354,
                 "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}}]},
                {"id": "m2", "content": "1", "from_history": false, "stop_after_tool_call": false, "role": "tool",
                 "created_at": 1_796_007_355, "tool_call_id": "c1", "tool_name": "add", "tool_args": {"a": 1},
                 "tool_call_error": false},
            ])
        );
    }
}
