//! What goes wrong at a provider, and what is done about it.

use std::time::Duration;

use cadre_gateway::{ModelConfig, Provider};
use cadre_protocol::model::{ModelDelta, ModelErrorCategory as Category};
use tokio_util::sync::CancellationToken;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::server::{STREAM_HEAD, Server, closed_by_client, pieces, write};
use crate::support::{CANARY, ask, ask_all, chat_stream, gateway, hello, model, models, secrets, sse};

fn chat(base: &str, retries: u32) -> ModelConfig {
    ModelConfig { retries, ..model(Provider::OpenAICompatible, base) }
}

#[tokio::test]
async fn passing_failures_are_tried_again() {
    let server = MockServer::start().await;
    for template in [
        ResponseTemplate::new(529).set_body_string(r#"{"error":{"type":"overloaded_error","message":"busy"}}"#),
        ResponseTemplate::new(429).insert_header("retry-after", "0").set_body_string("slow down"),
        sse("data: {\"error\":{\"message\":\"early\"}}\n\n"),
    ] {
        Mock::given(method("POST")).respond_with(template).up_to_n_times(1).mount(&server).await;
    }
    Mock::given(method("POST")).respond_with(sse(&chat_stream("at last"))).mount(&server).await;
    let reply = ask(&gateway(secrets()), &chat(&server.uri(), 3), hello()).await.unwrap();
    assert_eq!(reply.message.content, "at last");
    assert_eq!(server.received_requests().await.unwrap().len(), 4);
}

#[tokio::test]
async fn permanent_failures_and_long_waits_are_not() {
    let cases = [
        (ResponseTemplate::new(400), Category::BadRequest),
        (ResponseTemplate::new(401), Category::Authentication),
        (ResponseTemplate::new(404), Category::BadRequest),
        (ResponseTemplate::new(413), Category::ContextWindow),
        (
            ResponseTemplate::new(429).set_body_string(r#"{"error":{"code":"insufficient_quota","message":"no"}}"#),
            Category::Billing,
        ),
        (ResponseTemplate::new(429).insert_header("retry-after", "3600"), Category::RateLimit),
    ];
    for (template, expected) in cases {
        let server = MockServer::start().await;
        Mock::given(method("POST")).respond_with(template).expect(1).mount(&server).await;
        let error = ask(&gateway(secrets()), &chat(&server.uri(), 3), hello()).await.unwrap_err();
        assert_eq!(error.category, expected);
        if expected == Category::RateLimit {
            assert_eq!((error.status, error.retry_after_ms), (Some(429), Some(3_600_000)));
        }
    }
}

#[tokio::test]
async fn retries_end() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(503)).expect(2).mount(&server).await;
    let error = ask(&gateway(secrets()), &chat(&server.uri(), 1), hello()).await.unwrap_err();
    assert_eq!((error.category, error.status), (Category::Provider, Some(503)));
}

#[tokio::test]
async fn a_connection_that_breaks_after_a_piece_is_not_tried_again() {
    let server = Server::start().await;
    let config = chat(&server.url(), 3);
    let serve = async {
        let mut socket = server.accept().await;
        let stream = chat_stream("never complete");
        let piece = stream.split_once("\n\n").unwrap().0.replace("\"stop\"", "null");
        write(&mut socket, &format!("{STREAM_HEAD}{piece}\n\ndata: {{\"cho")).await;
    };
    let gateway = gateway(secrets());
    let ((reply, deltas), ()) = tokio::join!(ask_all(&gateway, &config, hello()), serve);
    assert_eq!(reply.unwrap_err().category, Category::Network);
    assert_eq!(deltas, [ModelDelta::Text("never complete".into())]);
}

#[tokio::test]
async fn cancelling_ends_the_upstream_request_at_once() {
    let server = Server::start().await;
    let config = chat(&server.url(), 3);
    let gateway = gateway(secrets());
    let cancel = CancellationToken::new();
    let (sender, mut receiver) = pieces();
    let mut deltas = move |delta| sender.send(delta).unwrap();
    let serve = async {
        let mut socket = server.accept().await;
        let event = r#"data: {"choices":[{"delta":{"content":"first"}}]}"#;
        write(&mut socket, &format!("{STREAM_HEAD}{event}\n\n")).await;
        assert_eq!(receiver.recv().await, Some(ModelDelta::Text("first".into())));
        cancel.cancel();
        closed_by_client(socket).await;
    };
    let (reply, ()) = tokio::join!(gateway.call(&config, hello(), &mut deltas, &cancel), serve);
    assert_eq!(reply.unwrap_err().category, Category::Cancelled);
}

#[tokio::test]
async fn a_provider_that_says_nothing_times_out() {
    let server = Server::start().await;
    let config = ModelConfig { timeout: Duration::from_secs(3), ..chat(&server.url(), 0) };
    let gateway = gateway(secrets());
    let serve = async {
        let socket = server.accept().await;
        closed_by_client(socket).await;
    };
    let (reply, ()) = tokio::join!(ask(&gateway, &config, hello()), serve);
    assert_eq!(reply.unwrap_err().category, Category::Timeout);
}

#[tokio::test]
async fn nobody_at_the_address_is_a_network_error() {
    let server = Server::start().await;
    let config = chat(&server.url(), 0);
    drop(server);
    let error = ask(&gateway(secrets()), &config, hello()).await.unwrap_err();
    assert_eq!(error.category, Category::Network);
}

#[tokio::test]
async fn the_key_is_in_no_error_message() {
    let echo = format!("you sent {CANARY} as Bearer {CANARY}");
    let in_stream = format!(r#"{{"type":"error","error":{{"type":"api_error","message":"{echo}"}}}}"#);
    let failed = format!(r#"{{"type":"response.failed","response":{{"error":{{"message":"{echo}"}}}}}}"#);
    let answers = [
        ResponseTemplate::new(401).set_body_string(&echo),
        ResponseTemplate::new(500).set_body_string(format!(r#"{{"error":{{"message":"{echo}"}}}}"#)),
        ResponseTemplate::new(302).insert_header("location", "http://127.0.0.1:1/").set_body_string(&echo),
        sse(&format!("data: {in_stream}\n\n")),
        sse(&format!("data: {failed}\n\n")),
        sse(&format!("data: {echo}\n\n")),
    ];
    for answer in answers {
        let server = MockServer::start().await;
        Mock::given(method("POST")).respond_with(answer).mount(&server).await;
        for config in models(&server.uri()) {
            let error = ask(&gateway(secrets()), &config, hello()).await.unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(CANARY) && error.message.chars().count() <= 2_000, "{shown}");
        }
    }
    let config = chat(&format!("http://{CANARY}@127.0.0.1:1/v1"), 0);
    let error = ask(&gateway(secrets()), &config, hello()).await.unwrap_err();
    assert!(!error.message.contains(CANARY), "{error}");
}
