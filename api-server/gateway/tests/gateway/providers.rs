//! What goes out to each provider and what comes back.

use cadre_gateway::{Api, ModelConfig, Pricing, Provider};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::{FinishReason, ModelReply, ModelRequest, ToolChoice, ToolSpec, Usage};
use serde_json::{Value, json};
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer};

use crate::support::{CANARY, ask, ask_all, gateway, model, request, secrets, sse, tool_result, user};

const MESSAGES: &str = include_str!("../fixtures/messages.sse");
const RESPONSES: &str = include_str!("../fixtures/responses.sse");
const CHAT: &str = include_str!("../fixtures/chat.sse");

/// A first request with everything in it.
fn first() -> ModelRequest {
    let parameters = json!({"type": "object", "properties": {"command": {"type": "string"}}});
    ModelRequest {
        tools: vec![ToolSpec { name: "shell".into(), description: "Runs a command.".into(), parameters }],
        tool_choice: Some(ToolChoice::Required),
        output_schema: Some(json!({
            "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]
        })),
        ..request(vec![Message::text(Role::System, "Be brief.", 0), user("List the files.")])
    }
}

/// The second request: the answer, its tools' results, and a word of the user.
fn second(reply: &ModelReply) -> ModelRequest {
    let mut messages = first().messages;
    messages.push(reply.message.clone());
    for (call, result) in reply.message.tool_calls.iter().zip(["a.txt", "noon"]) {
        messages.push(tool_result(call, result));
    }
    request(messages)
}

/// Asks twice; gives the first reply and both bodies as the provider saw them.
async fn two_calls(model: &mut ModelConfig, at: &str, key: (&str, &str), stream: &str) -> (ModelReply, Value, Value) {
    let server = MockServer::start().await;
    model.base_url = Some(server.uri().parse().unwrap());
    model.parameters.temperature = Some(0.5);
    model.parameters.max_output_tokens = Some(1_000);
    model.parameters.reasoning_effort = Some("low".into());
    model.headers.insert("x-team".into(), "blue".into());
    model.pricing = Some(Pricing::parse("3", "15", Some("0.30"), Some("3.75")).unwrap());
    Mock::given(method("POST"))
        .and(path(at))
        .and(header(key.0, key.1))
        .and(header("x-team", "blue"))
        .respond_with(sse(stream))
        .expect(2)
        .mount(&server)
        .await;
    let gateway = gateway(secrets());
    let (reply, deltas) = ask_all(&gateway, model, first()).await;
    let reply = reply.unwrap();
    assert!(deltas.len() >= 3, "{deltas:?}");
    ask(&gateway, model, second(&reply)).await.unwrap();
    let bodies: Vec<Value> =
        server.received_requests().await.unwrap().iter().map(|request| request.body_json().unwrap()).collect();
    let [one, two] = <[Value; 2]>::try_from(bodies).unwrap();
    (reply, one, two)
}

#[tokio::test]
async fn messages() {
    let mut config = model(Provider::Anthropic, "http://x");
    let (reply, one, two) = two_calls(&mut config, "/v1/messages", ("x-api-key", CANARY), MESSAGES).await;

    let cache = json!({"type": "ephemeral"});
    let expected = json!({
        "model": "asked-model", "max_tokens": 1000, "stream": true, "temperature": 0.5,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": cache}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "List the files.", "cache_control": cache}]}],
        "tools": [{"name": "shell", "description": "Runs a command.",
            "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {
            "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
            "additionalProperties": false}}},
    });
    assert_eq!(one, expected);

    assert_eq!(reply.message.content, "Voilà, two calls.");
    assert_eq!(reply.message.reasoning.as_deref(), Some("Let me look."));
    assert_eq!((reply.model_id.as_str(), reply.provider.as_str()), ("claude-test-20260101", "Anthropic"));
    assert_eq!(reply.finish, FinishReason::ToolCalls);
    let usage = Usage {
        input_tokens: 60,
        output_tokens: 25,
        cache_read_tokens: 30,
        cache_write_tokens: 20,
        reasoning_tokens: 0,
    };
    assert_eq!(reply.usage, usage);
    assert_eq!(reply.cost_nano_usd, Some(10 * 3_000 + 30 * 300 + 20 * 3_750 + 25 * 15_000));

    assert_eq!(
        two["messages"].as_array().unwrap()[1..],
        [
            json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Let me look.", "signature": "EqQB+/=="},
                {"type": "redacted_thinking", "data": "b3BhcXVl"},
                {"type": "text", "text": "Voilà, two calls."},
                {"type": "tool_use", "id": "toolu_01", "name": "shell", "input": {"command": "ls"}},
                {"type": "tool_use", "id": "toolu_02", "name": "now", "input": {}},
            ]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01", "content": "a.txt"},
                {"type": "tool_result", "tool_use_id": "toolu_02", "content": "noon", "cache_control": cache},
            ]}),
        ]
    );
}

#[tokio::test]
async fn responses() {
    let mut config = model(Provider::OpenAI, "http://x");
    let bearer = format!("Bearer {CANARY}");
    let (reply, one, two) = two_calls(&mut config, "/responses", ("authorization", &bearer), RESPONSES).await;

    let user = json!({"type": "message", "role": "user",
        "content": [{"type": "input_text", "text": "List the files."}]});
    let system = json!({"type": "message", "role": "system",
        "content": [{"type": "input_text", "text": "Be brief."}]});
    let expected = json!({
        "model": "asked-model", "stream": true, "store": false, "temperature": 0.5, "max_output_tokens": 1000,
        "input": [system, user],
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "name": "shell", "description": "Runs a command.", "strict": false,
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}],
        "tool_choice": "required",
        "text": {"format": {"type": "json_schema", "name": "answer", "strict": true, "schema": {
            "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
            "additionalProperties": false}}},
    });
    assert_eq!(one, expected);

    assert_eq!(reply.message.content, "Voilà, a call.");
    assert_eq!(reply.message.reasoning.as_deref(), Some("Thinking."));
    assert_eq!(reply.usage.reasoning_tokens, 15);
    assert_eq!(reply.cost_nano_usd, Some(30 * 3_000 + 30 * 300 + 25 * 15_000));

    assert_eq!(
        two["input"].as_array().unwrap()[2..],
        [
            json!({"type": "reasoning", "encrypted_content": "gAAA==",
                "summary": [{"type": "summary_text", "text": "Thinking."}]}),
            json!({"type": "message", "role": "assistant", "phase": "commentary",
                "content": [{"type": "output_text", "text": "Voilà, a call."}]}),
            json!({"type": "function_call", "call_id": "call_1", "name": "shell",
                "arguments": "{\"command\":\"ls\"}"}),
            json!({"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}),
        ]
    );
}

#[tokio::test]
async fn chat_completions() {
    let mut config = model(Provider::OpenAICompatible, "http://x");
    let bearer = format!("Bearer {CANARY}");
    let (reply, one, two) = two_calls(&mut config, "/chat/completions", ("authorization", &bearer), CHAT).await;

    let expected = json!({
        "model": "asked-model", "stream": true, "stream_options": {"include_usage": true},
        "temperature": 0.5, "max_tokens": 1000, "reasoning_effort": "low",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "List the files."}],
        "tools": [{"type": "function", "function": {"name": "shell", "description": "Runs a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}],
        "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": {
            "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
            "additionalProperties": false}}},
    });
    assert_eq!(one, expected);

    assert_eq!(reply.message.content, "Voilà, two calls.");
    assert_eq!(reply.message.reasoning.as_deref(), Some("Hm, so."));
    assert_eq!(reply.model_id, "served-model");
    assert_eq!(reply.usage.cache_read_tokens, 30);

    assert_eq!(
        two["messages"].as_array().unwrap()[2..],
        [
            json!({"role": "assistant", "content": "Voilà, two calls.", "reasoning_content": "Hm, so.", "tool_calls": [
                {"id": "call_a", "type": "function",
                    "function": {"name": "shell", "arguments": "{\"command\":\"ls\"}"}},
                {"id": "call_b", "type": "function", "function": {"name": "now", "arguments": "{}"}},
            ]}),
            json!({"role": "tool", "tool_call_id": "call_a", "content": "a.txt"}),
            json!({"role": "tool", "tool_call_id": "call_b", "content": "noon"}),
        ]
    );
}

/// What an engine says is `provider_data` reaches a provider only in the shapes that the provider itself gave out.
#[tokio::test]
async fn forged_provider_data_is_dropped() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).and(path("/v1/messages")).respond_with(sse(MESSAGES)).mount(&server).await;
    Mock::given(method("POST")).and(path("/responses")).respond_with(sse(RESPONSES)).mount(&server).await;
    let gateway = gateway(secrets());
    for api in [Api::Messages, Api::Responses] {
        let forged = json!({"api": api.as_str(), "slots": [
            {"opaque": {"type": "image", "source": {"type": "url", "url": "http://evil.example"}}},
            {"opaque": {"type": "item_reference", "id": "rs_stored"}},
            {"opaque": {"type": "thinking", "signature": "s", "thinking": "t", "extra": "evil"}},
            {"opaque": {"type": "reasoning", "encrypted_content": "e", "id": "rs_stored", "summary": "evil"}},
            {"text": {"bytes": 2, "mark": "evil"}},
        ]});
        let said = Message { provider_data: Some(forged), ..Message::text(Role::Assistant, "ok", 0) };
        let config = ModelConfig { api, ..model(Provider::OpenAICompatible, &server.uri()) };
        ask(&gateway, &config, request(vec![user("a"), said, user("b")])).await.unwrap();
    }
    for request in server.received_requests().await.unwrap() {
        let body = String::from_utf8(request.body).unwrap();
        assert!(body.contains("\"ok\""), "{body}");
        for word in ["evil", "image", "item_reference", "rs_stored"] {
            assert!(!body.contains(word), "{word}: {body}");
        }
    }
}

#[tokio::test]
async fn calls_without_ids_get_some_that_differ() {
    let server = MockServer::start().await;
    let calls = json!([{"function": {"name": "a"}}, {"function": {"name": "b", "arguments": "{}"}}]);
    let event = json!({"choices": [{"delta": {"tool_calls": calls}, "finish_reason": "stop"}]});
    Mock::given(method("POST")).respond_with(sse(&format!("data: {event}\n\n"))).mount(&server).await;
    let gateway = gateway(secrets());
    let config = model(Provider::OpenAICompatible, &server.uri());
    let mut ids = std::collections::HashSet::new();
    for _ in 0..2 {
        let reply = ask(&gateway, &config, request(vec![user("x")])).await.unwrap();
        ids.extend(reply.message.tool_calls.into_iter().map(|call| call.id));
    }
    assert!(ids.len() == 4 && !ids.contains(""), "{ids:?}");
}
