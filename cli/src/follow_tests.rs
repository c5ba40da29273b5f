//! The follower against a server that breaks off wherever it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Multipart, State};
use axum::response::IntoResponse as _;
use axum::routing::post;
use http::HeaderMap;
use tokio::net::TcpListener;

use super::*;
use crate::transport::Transport;

const EVENTS: [&str; 6] =
    ["RunStarted", "RunContent", "ToolCallStarted", "ToolCallCompleted", "RunContent", "RunCompleted"];

/// Event numbers have holes.
fn index(n: usize) -> usize {
    n * 3
}

fn frame(n: usize) -> String {
    format!("id: {}\nevent: {}\ndata: {{\"n\":{n}}}\n\n", index(n), EVENTS[n])
}

/// What a connection does.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Sends everything.
    None,
    /// Breaks off after so many bytes, as a killed server does.
    Cut(usize),
    /// Ends in order after so many bytes, as a stopping server does.
    End(usize),
    /// Answers 503.
    Busy,
    /// Sends the last event that the client has once more.
    Repeat,
}

struct Script {
    faults: Vec<Fault>,
    connections: AtomicU32,
}

async fn resume(
    State(script): State<Arc<Script>>,
    headers: HeaderMap,
    mut form: Multipart,
) -> axum::response::Response {
    let connection = script.connections.fetch_add(1, Ordering::SeqCst) as usize;
    let fault = script.faults.get(connection).copied().unwrap_or(Fault::None);
    let asked: i64 = headers["last-event-id"].to_str().unwrap().parse().unwrap();
    let field = form.next_field().await.unwrap().unwrap();
    assert_eq!(field.name(), Some("last_event_index"));
    assert_eq!(field.text().await.unwrap(), asked.to_string());
    let has = |n: &usize| i64::try_from(index(*n)).unwrap() <= asked;
    let first = (0..EVENTS.len()).find(|n| !has(n)).unwrap_or(EVENTS.len());
    let from = if fault == Fault::Repeat { first.saturating_sub(1) } else { first };
    let words = "event: catch_up\ndata: {\"event\":\"catch_up\"}\n\n: keepalive\n\n";
    let all = format!("{words}{}", (from..EVENTS.len()).map(frame).collect::<String>());
    let piece = |length: usize| all.as_bytes()[..length.min(all.len())].to_vec();
    match fault {
        Fault::None | Fault::Repeat => Body::from(all).into_response(),
        Fault::End(length) => Body::from(piece(length)).into_response(),
        Fault::Busy => {
            (http::StatusCode::SERVICE_UNAVAILABLE, r#"{"detail":"x","error_id":"shutting_down"}"#).into_response()
        }
        Fault::Cut(length) => {
            let broken = std::io::Error::other("killed");
            let chunks = [Ok(Bytes::from(piece(length))), Err(broken)];
            Body::from_stream(stream::iter(chunks)).into_response()
        }
    }
}

async fn follow(faults: Vec<Fault>) -> (Vec<String>, u32) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let script = Arc::new(Script { faults, connections: AtomicU32::new(0) });
    let router = Router::new().route("/agents/{agent}/runs/{run}/resume", post(resume)).with_state(script.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let api = Api::new(Transport::direct(&format!("http://{address}")).unwrap(), None).unwrap();
    let mut follower = Follower::new(api, "helper", "r1");
    let mut seen = Vec::new();
    while let Some(frame) = follower.next().await.unwrap() {
        if frame.is_event {
            seen.push(frame.text("n").unwrap_or(frame.data));
        }
    }
    server.abort();
    (seen, script.connections.load(Ordering::SeqCst))
}

fn expected() -> Vec<String> {
    (0..EVENTS.len()).map(|n| format!("{{\"n\":{n}}}")).collect()
}

#[tokio::test]
async fn each_event_comes_once_wherever_the_stream_breaks() {
    let whole: usize = 100 + (0..EVENTS.len()).map(|n| frame(n).len()).sum::<usize>();
    let faults = (0..whole).step_by(7).flat_map(|length| [Fault::Cut(length), Fault::End(length)]);
    let followed = futures::future::join_all(faults.map(|fault| follow(vec![fault]))).await;
    for (case, (seen, _)) in followed.into_iter().enumerate() {
        assert_eq!(seen, expected(), "case {case}");
    }
}

#[tokio::test]
async fn servers_that_come_and_go_lose_nothing() {
    let first = 60 + frame(0).len();
    let faults = vec![Fault::Cut(first), Fault::Busy, Fault::Cut(0), Fault::End(first + 20), Fault::Repeat];
    let (seen, connections) = follow(faults).await;
    assert_eq!((seen, connections), (expected(), 5));
}

#[tokio::test]
async fn a_refusal_is_no_reason_to_come_again() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let router = Router::new()
        .fallback(|| async { "event: error\ndata: {\"event\":\"error\",\"error\":\"Run not found\"}\n\n" });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let api = Api::new(Transport::direct(&format!("http://{address}")).unwrap(), None).unwrap();
    let error = Follower::new(api, "helper", "r1").next().await.unwrap_err();
    assert_eq!(error.to_string(), "Run not found (not_found)");
    server.abort();
}

#[tokio::test]
async fn an_end_that_the_run_went_on_from_is_not_the_last_event() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let event = |id: u64, name: &str| format!("id: {id}\nevent: {name}\ndata: {{}}\n\n");
    let all = ["RunStarted", "RunError", "RunContinued", "RunCompleted"];
    let events: String = all.iter().zip(0..).map(|(name, id)| event(id, name)).collect();
    let ended = "event: replay\ndata: {\"status\":\"COMPLETED\",\"total_buffered\":4}\n\n";
    let live = "event: catch_up\ndata: {\"status\":\"PENDING\",\"current_event_count\":2}\n\n";
    for control in [ended, live] {
        let body = format!("{control}{events}");
        let router = Router::new().fallback(move || async move { body });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let api = Api::new(Transport::direct(&format!("http://{address}")).unwrap(), None).unwrap();
        let mut follower = Follower::new(api, "helper", "r1");
        let mut names = Vec::new();
        while let Some(frame) = follower.next().await.unwrap() {
            names.extend(frame.is_event.then_some(frame.name));
        }
        assert_eq!(names, all);
        server.abort();
    }
}

#[tokio::test]
async fn an_ended_run_without_a_last_event_ends_the_stream() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let replay = "event: replay\ndata: {\"event\":\"replay\",\"status\":\"COMPLETED\"}\n\n";
    let router = Router::new().fallback(move || async move { replay });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let api = Api::new(Transport::direct(&format!("http://{address}")).unwrap(), None).unwrap();
    let mut follower = Follower::new(api, "helper", "r1");
    let mut frames = 0;
    while let Some(frame) = follower.next().await.unwrap() {
        assert!(!frame.is_event);
        frames += 1;
    }
    assert_eq!(frames, MAX_EMPTY_REPLAYS);
    server.abort();
}
