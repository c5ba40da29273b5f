//! The scripted provider, as quickstart and other tests use it.

use std::time::Duration;

use cadre_gateway::ModelConfig;
use cadre_protocol::model::{FinishReason, ModelDelta, ModelErrorCategory};
use tokio_util::sync::CancellationToken;

use crate::support::{ask, ask_all, gateway, request, secrets, tool_result, user};

fn scripted(script: Option<&str>) -> ModelConfig {
    ModelConfig::scripted("team", "main", script.map(str::to_owned))
}

#[tokio::test]
async fn without_a_script_it_echoes() {
    let gateway = gateway(secrets());
    let (reply, deltas) = ask_all(&gateway, &scripted(None), request(vec![user("hello, you there")])).await;
    let reply = reply.unwrap();
    assert_eq!(reply.message.content, "You said: hello, you there");
    assert_eq!(reply.finish, FinishReason::Stop);
    assert_eq!((reply.usage.input_tokens, reply.usage.output_tokens), (4, 7));
    let said = [ModelDelta::Text("You said: hello,".into()), ModelDelta::Text(" you there".into())];
    assert_eq!(deltas, said);
}

#[tokio::test]
async fn turns_follow_the_conversation_alone() {
    let script = "
- reasoning: thinking
  tools: [{name: shell, arguments: {command: \"echo {{input}}\", deep: [\"{{input}}\"]}}]
- tools: [{name: shell, arguments: '{\"broken'}, {name: read}]
- \"{{last_result}}; {{result.shell}}; {{previous}}\"
";
    let model = scripted(Some(script));
    let mut messages = vec![user("one")];
    // A new gateway each time: nothing may be remembered.
    let reply = ask(&gateway(secrets()), &model, request(messages.clone())).await.unwrap();
    assert_eq!(reply.finish, FinishReason::ToolCalls);
    assert_eq!(reply.message.reasoning.as_deref(), Some("thinking"));
    let call = reply.message.tool_calls[0].clone();
    assert_eq!(call.arguments, r#"{"command":"echo one","deep":["one"]}"#);
    let again = ask(&gateway(secrets()), &model, request(messages.clone())).await.unwrap();
    assert_eq!(again.message.tool_calls, reply.message.tool_calls);
    messages.extend([reply.message, tool_result(&call, "first")]);

    let reply = ask(&gateway(secrets()), &model, request(messages.clone())).await.unwrap();
    let calls = reply.message.tool_calls.clone();
    assert_eq!((calls[0].arguments.as_str(), calls[1].arguments.as_str()), ("{\"broken", "{}"));
    assert!(calls[0].id != calls[1].id && calls[0].id != call.id);
    messages.extend([reply.message, tool_result(&calls[0], "second"), tool_result(&calls[1], "{{input}}")]);

    let reply = ask(&gateway(secrets()), &model, request(messages.clone())).await.unwrap();
    assert_eq!(reply.message.content, "{{input}}; second; ");
    messages.extend([reply.message, user("```script\n- \"{{input}}|{{previous}}\"\n```\nnew")]);

    let reply = ask(&gateway(secrets()), &model, request(messages.clone())).await.unwrap();
    assert_eq!(reply.message.content, "new|{{input}}; second; ");
    messages.push(reply.message);
    let reply = ask(&gateway(secrets()), &model, request(messages)).await.unwrap();
    assert_eq!(reply.message.content, "(end of script)");
}

#[tokio::test]
async fn failures_are_counted_per_place() {
    let script = "[{fail: {category: provider, message: down, times: 2}, text: \"\"}, {fail: {category: billing}}]";
    let gateway = gateway(secrets());
    let none = scripted(Some(script));
    let messages = vec![user("x")];
    for _ in 0..2 {
        let error = ask(&gateway, &none, request(messages.clone())).await.unwrap_err();
        assert_eq!((error.category, error.message.as_str()), (ModelErrorCategory::Provider, "down"));
    }
    assert!(ask(&gateway, &none, request(messages)).await.is_ok());
    // The gateway's own retries are enough for two failures.
    let two = ModelConfig { retries: 2, ..none };
    let messages = vec![user("y")];
    let reply = ask(&gateway, &two, request(messages.clone())).await.unwrap();
    let error = ask(&gateway, &two, request([messages, vec![reply.message]].concat())).await.unwrap_err();
    assert_eq!(error.category, ModelErrorCategory::Billing);
}

#[tokio::test]
async fn a_failure_after_text_is_not_repeated() {
    let model = ModelConfig { retries: 5, ..scripted(Some("[{text: half, fail: {category: network}}]")) };
    let (reply, deltas) = ask_all(&gateway(secrets()), &model, request(vec![user("x")])).await;
    assert_eq!(reply.unwrap_err().category, ModelErrorCategory::Network);
    assert_eq!(deltas, [ModelDelta::Text("half".into())]);
}

#[tokio::test]
async fn delays_time_limits_and_cancellation() {
    let gateway = gateway(secrets());
    let slow = scripted(Some("[{text: abcdef, chunk: 2, delayMs: 60, chunkDelayMs: 20}]"));
    let (reply, deltas) = ask_all(&gateway, &slow, request(vec![user("x")])).await;
    let reply = reply.unwrap();
    assert_eq!(deltas.len(), 3);
    assert!(reply.time_to_first_token_ms >= 60 && reply.duration_ms >= reply.time_to_first_token_ms + 40);

    let endless = scripted(Some("[{text: abcdef, chunk: 2, chunkDelayMs: 3600000}]"));
    let limited = ModelConfig { timeout: Duration::from_millis(50), ..endless.clone() };
    let error = ask(&gateway, &limited, request(vec![user("x")])).await.unwrap_err();
    assert_eq!(error.category, ModelErrorCategory::Timeout);

    let cancel = CancellationToken::new();
    let mut deltas = |_| cancel.cancel();
    let error = gateway.call(&endless, request(vec![user("x")]), &mut deltas, &cancel).await.unwrap_err();
    assert_eq!(error.category, ModelErrorCategory::Cancelled);
}

#[tokio::test]
async fn a_bad_script_says_where() {
    let error = ask(&gateway(secrets()), &scripted(Some("- ok\n- {txt: 1}")), request(vec![user("x")])).await;
    let error = error.unwrap_err();
    assert_eq!(error.category, ModelErrorCategory::BadRequest);
    assert!(error.message.starts_with("the Model's script: turn 2: unknown field `txt`"), "{}", error.message);
}

#[tokio::test]
async fn calls_can_be_spawned() {
    let gateway = std::sync::Arc::new(gateway(secrets()));
    let call = async move {
        let mut text = String::new();
        let mut deltas = |delta| text.push_str(&format!("{delta:?}"));
        gateway.call(&scripted(None), request(vec![user("x")]), &mut deltas, &CancellationToken::new()).await
    };
    assert!(tokio::spawn(call).await.unwrap().is_ok());
}
