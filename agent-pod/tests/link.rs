//! The engine process against a worker port that breaks connections: nothing is lost, nothing is doubled.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail so")]

mod support;

use std::time::{Duration, Instant};

use cadre_agent::config::{Endpoint, EngineConfig, ExecSource, TokenSource};
use cadre_agent::service::{EngineExit, engine_main};
use cadre_protocol::agent::Builtin;
use cadre_protocol::ids::Epoch;
use cadre_protocol::journal::Record;
use cadre_protocol::run::RunEnd;
use cadre_protocol::worker::{ServerFrame, WorkerFrame};
use support::{Break, Connection, Server, assignment, engine, reply};
use tokio::net::{TcpListener, UnixListener};
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_util::sync::CancellationToken;

/// Runs a conversation with one request of the `http` tool over connections that break at these points.
async fn converse(method: &str, breaks: &[Break]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine_main(engine(&socket, ExecSource::None), stop.clone()));
    let arguments = format!("{{\"url\":\"https://a.example\",\"method\":\"{method}\"}}");
    let replies = vec![reply("", Some(("1", "http", &arguments))), reply("done", None)];
    let mut server = Server::new(assignment(&[Builtin::Http]), replies);
    let mut points = breaks.iter().copied();
    let mut last = None;
    while !server.finished() {
        last = server.serve(&listener, points.next()).await;
    }
    stop.cancel();
    if last.is_none() {
        last = server.serve(&listener, None).await;
    }
    if let (Some(connection), false) = (&mut last, server.draining) {
        while let Some(frame) = connection.receive().await {
            for answer in server.take(frame) {
                connection.send(answer).await;
            }
        }
    }
    drop(last);
    assert_eq!(running.await.unwrap().unwrap(), EngineExit::Stopped);
    assert!(server.draining);
    server
}

fn check(server: &Server, at: &[Break]) {
    let names = server.event_names();
    let count = |name: &str| names.iter().filter(|found| **found == name).count();
    for once in ["RunStarted", "ToolCallStarted", "ToolCallCompleted", "RunContentCompleted", "RunCompleted"] {
        assert_eq!(count(once), 1, "{once} with {at:?}: {names:?}");
    }
    assert_eq!(count("ModelRequestCompleted"), 2, "{at:?}");
    let end = RunEnd::Completed { content: "done".into(), content_type: "str".into() };
    assert_eq!(server.journal.last().unwrap().record, Some(Record::Finished(end)), "{at:?}");
}

#[tokio::test]
async fn a_connection_may_break_at_any_frame() {
    for n in 0..8 {
        for at in [Break::Before(n), Break::After(n)] {
            let server = converse("GET", &[at]).await;
            check(&server, &[at]);
            assert!((1..=2).contains(&server.requests.len()), "{at:?}");
        }
    }
}

#[tokio::test]
async fn connections_may_break_again_and_again() {
    let breaks =
        [Break::Before(1), Break::After(1), Break::After(2), Break::Before(0), Break::Before(2), Break::After(1)];
    check(&converse("GET", &breaks).await, &breaks);
}

#[tokio::test]
async fn a_request_with_effects_is_never_made_twice() {
    for n in 0..8 {
        for at in [Break::Before(n), Break::After(n)] {
            let server = converse("POST", &[at]).await;
            check(&server, &[at]);
            let is_unknown = server.event_names().contains(&"CustomEvent");
            assert!(server.requests.len() <= 1, "{at:?}");
            assert!(is_unknown || server.requests.len() == 1, "{at:?}: what was not done must be told");
        }
    }
    for (at, requests) in [(Break::BeforeTool, 0), (Break::AfterTool, 1)] {
        let server = converse("POST", &[at]).await;
        check(&server, &[at]);
        assert_eq!(server.requests.len(), requests, "{at:?}");
        assert!(server.event_names().contains(&"CustomEvent"), "{at:?}");
    }
}

struct Session {
    _folder: tempfile::TempDir,
    listener: UnixListener,
    running: tokio::task::JoinHandle<std::io::Result<EngineExit>>,
    stop: CancellationToken,
}

fn start() -> Session {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine_main(engine(&socket, ExecSource::None), stop.clone()));
    Session { _folder: folder, listener, running, stop }
}

async fn begin(session: &Session) -> Connection {
    let mut connection = Connection::accept(&session.listener).await;
    connection.welcome().await;
    connection.send(ServerFrame::Assign(Box::new(assignment(&[])))).await;
    connection
}

#[tokio::test]
async fn a_cancel_is_obeyed_at_once_and_takes_the_model_call_back() {
    let session = start();
    let mut connection = begin(&session).await;
    let held = assignment(&[]);
    let mut server = Server::new(held.clone(), Vec::new());
    let mut call = None;
    while call.is_none() {
        match connection.receive().await.unwrap() {
            WorkerFrame::ModelCall { call: number, .. } => call = Some(number),
            other => drop(server.take(other)),
        }
    }
    let cancelled = Instant::now();
    let (run_id, epoch) = (held.run_id, held.epoch);
    connection.send(ServerFrame::Cancel { run_id, epoch, reason: "a user".into() }).await;
    let mut taken_back = false;
    while !(server.finished() && taken_back) {
        match connection.receive().await.unwrap() {
            WorkerFrame::CancelCall { call: number } => taken_back = Some(number) == call,
            other => {
                for answer in server.take(other) {
                    connection.send(answer).await;
                }
            }
        }
    }
    assert!(cancelled.elapsed() < Duration::from_secs(10));
    assert_eq!(server.event_names().last(), Some(&"RunCancelled"));
    session.stop.cancel();
    assert_eq!(session.running.await.unwrap().unwrap(), EngineExit::Stopped);
}

#[tokio::test]
async fn a_fenced_run_is_let_go_in_silence() {
    let session = start();
    let mut connection = begin(&session).await;
    let held = assignment(&[]);
    let mut fenced = false;
    while !fenced {
        if let WorkerFrame::Append(_) = connection.receive().await.unwrap() {
            let (run_id, epoch) = (held.run_id.clone(), held.epoch);
            connection.send(ServerFrame::Fenced { run_id, epoch }).await;
            fenced = true;
        }
    }
    session.stop.cancel();
    while let Some(frame) = connection.receive().await {
        assert!(!matches!(frame, WorkerFrame::Append(_)), "{frame:?}");
    }
    assert_eq!(session.running.await.unwrap().unwrap(), EngineExit::Stopped);
}

#[tokio::test]
async fn a_newer_epoch_replaces_an_older_one() {
    let session = start();
    let mut connection = begin(&session).await;
    let mut newer = assignment(&[]);
    newer.epoch = Epoch(8);
    connection.send(ServerFrame::Assign(Box::new(newer))).await;
    let mut epochs = Vec::new();
    while epochs.last() != Some(&Epoch(8)) {
        if let WorkerFrame::ModelCall { epoch, .. } = connection.receive().await.unwrap() {
            epochs.push(epoch);
        }
    }
    drop(connection);
    let again = Connection::accept(&session.listener).await;
    assert_eq!(again.hello.runs.iter().map(|run| run.epoch).collect::<Vec<_>>(), [Epoch(8)]);
}

#[tokio::test]
async fn a_rejected_worker_ends() {
    let session = start();
    let mut connection = Connection::accept(&session.listener).await;
    connection.send(ServerFrame::Rejected { reason: "too old".into() }).await;
    assert_eq!(session.running.await.unwrap().unwrap().code(), 3);
}

#[tokio::test]
async fn a_refused_token_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "old\n").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = Endpoint::Tcp { authority: listener.local_addr().unwrap().to_string() };
    let config =
        EngineConfig { api, token: TokenSource::File(token.clone()), ..engine(folder.path(), ExecSource::None) };
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine_main(config, stop.clone()));
    let mut seen = Vec::new();
    while seen.last().map(String::as_str) != Some("Bearer new") {
        let (stream, _) = listener.accept().await.unwrap();
        let mut header = String::new();
        #[expect(clippy::result_large_err, reason = "the handshake's callback is declared so")]
        let look = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
            header = request.headers()["authorization"].to_str().unwrap().to_owned();
            if header == "Bearer new" {
                return Ok(response);
            }
            let mut refusal = ErrorResponse::new(None);
            *refusal.status_mut() = http::StatusCode::UNAUTHORIZED;
            Err(refusal)
        };
        let accepted = accept_hdr_async(stream, look).await;
        std::fs::write(&token, "new\n").unwrap();
        assert_eq!(accepted.is_ok(), header == "Bearer new");
        seen.push(header);
    }
    assert_eq!(seen, ["Bearer old", "Bearer new"]);
    stop.cancel();
    assert_eq!(running.await.unwrap().unwrap(), EngineExit::Stopped);
}
