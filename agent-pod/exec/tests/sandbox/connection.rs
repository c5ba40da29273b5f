//! The connection: coming, going, who may have it, and what a bad peer achieves.

use std::time::Duration;

use cadre_exec::client::{ExecClient, ExecListener, ExecLost, ExecState};
use cadre_protocol::exec::{ExecBody, ExecOp, ExecRequest, ExecResponse, MAX_FRAME_BYTES};
use cadre_protocol::ids::Epoch;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::support::{SOON, Sandbox, command, eventually, exists, output};

fn signal(sandbox: &Sandbox, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(sandbox.server.id()).unwrap()), signal).unwrap();
}

#[tokio::test]
async fn requests_run_at_the_same_time() {
    let (_sandbox, client) = Sandbox::start().await;
    let waiting = client.begin(command("until [ -e go ]; do sleep 0.02; done; cat go", SOON)).unwrap();
    let write = ExecOp::Write { path: "go".into(), content: "went".into() };
    assert!(matches!(client.request(write).await.unwrap(), ExecBody::Done { .. }));
    assert!(matches!(waiting.answer().await.unwrap(), ExecBody::Exited { stdout, .. } if stdout == "went"));
    let many = (0..20).map(|number| {
        let client = client.clone();
        async move { assert_eq!(output(&client, &format!("echo {number}")).await, format!("{number}\n")) }
    });
    futures::future::join_all(many).await;
}

#[tokio::test]
async fn a_second_connection_is_closed_and_harms_nothing() {
    let (sandbox, client) = Sandbox::start().await;
    for _ in 0..3 {
        let mut second = UnixStream::connect(sandbox.socket()).await.unwrap();
        assert_eq!(second.read(&mut [0; 1]).await.unwrap_or(0), 0);
    }
    assert_eq!(output(&client, "echo first").await, "first\n");
    assert_eq!(client.losses(), 0);
}

#[tokio::test]
async fn a_lost_server_means_unknown_outcome_and_its_return_is_noticed() {
    let (mut sandbox, client) = Sandbox::start().await;
    let id = client.ready().await;
    let lost = client.begin(command("echo $$ > pids; exec sleep 1000", SOON)).unwrap();
    let orphan = sandbox.pids("pids", 1).await[0];
    signal(&sandbox, Signal::SIGKILL);
    assert_eq!(lost.answer().await, Err(ExecLost::OutcomeUnknown));
    // In a pod the command would have gone with PID 1.
    kill(Pid::from_raw(i32::try_from(orphan).unwrap()), Signal::SIGKILL).unwrap();
    eventually("the loss is known", || *client.watch().borrow() == ExecState::Absent).await;
    assert_eq!(client.request(command("true", SOON)).await, Err(ExecLost::NotConnected));
    assert_eq!(client.wait_connected(Duration::from_millis(1)).await, Err(ExecLost::NotConnected));
    sandbox.server.wait().unwrap();
    sandbox.server = Sandbox::serve(sandbox.folder.path());
    assert_eq!(client.wait_connected(SOON).await, Ok(id));
    assert_eq!((output(&client, "echo back").await.as_str(), client.losses()), ("back\n", 1));
}

#[tokio::test]
async fn the_server_comes_back_to_a_new_engine_and_ends_the_old_epoch() {
    let (sandbox, client) = Sandbox::start().await;
    let id = client.ready().await;
    output(&client, "sleep 1000 & echo $! > pids").await;
    let running = client.begin(command("(setsid sleep 1000 &); echo $$ >> pids; sleep 1000", SOON)).unwrap();
    let old = sandbox.pids("pids", 2).await;
    drop((client, running));
    eventually("the old engine is gone", || std::os::unix::net::UnixStream::connect(sandbox.socket()).is_err()).await;
    assert!(old.iter().all(|pid| exists(*pid)));
    let client = sandbox.engine(2);
    assert_eq!(client.wait_connected(SOON).await, Ok(id));
    assert!(old.iter().all(|pid| !exists(*pid)), "ended before the greeting was answered");
}

#[tokio::test]
async fn a_new_epoch_on_a_live_connection_ends_the_old_one() {
    let (sandbox, client) = Sandbox::start().await;
    let running = client.begin(command("echo $$ > pids; sleep 1000", SOON)).unwrap();
    let pid = sandbox.pids("pids", 1).await[0];
    client.set_epoch(Epoch(1));
    client.wait_connected(SOON).await.unwrap();
    assert!(exists(pid), "the same epoch ends nothing");
    client.set_epoch(Epoch(2));
    client.wait_connected(SOON).await.unwrap();
    let answer = running.answer().await.unwrap();
    assert!(matches!(answer, ExecBody::Exited { killed: true, signal: Some(15), .. }), "{answer:?}");
    eventually("it is gone", || !exists(pid)).await;
}

#[tokio::test]
async fn sigterm_waits_for_the_engine_to_go() {
    let (mut sandbox, client) = Sandbox::start().await;
    output(&client, "(setsid sleep 1000 &)").await;
    signal(&sandbox, Signal::SIGTERM);
    assert_eq!(output(&client, "echo still here").await, "still here\n");
    drop(client);
    let ended = tokio::task::spawn_blocking(move || sandbox.server.wait().map(|status| (status, sandbox)));
    let (status, _sandbox) = tokio::time::timeout(SOON, ended).await.unwrap().unwrap().unwrap();
    assert!(status.success(), "{status}");
}

/// An engine without a server, and a peer that plays one after the greeting.
async fn peer() -> (tempfile::TempDir, ExecClient, UnixStream) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let client = ExecListener::bind(&path).unwrap().start();
    client.set_epoch(Epoch(1));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let id = request(&mut stream).await.id;
    send(&mut stream, &ExecResponse { id, body: ExecBody::Ready { workspace_id: "w".into() } }).await;
    assert_eq!(client.wait_connected(SOON).await.as_deref(), Ok("w"));
    (folder, client, stream)
}

async fn request(stream: &mut UnixStream) -> ExecRequest {
    let mut content = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut content).await.unwrap();
    serde_json::from_slice(&content).unwrap()
}

async fn send(stream: &mut UnixStream, response: &ExecResponse) {
    raw(stream, &serde_json::to_vec(response).unwrap()).await;
}

async fn raw(stream: &mut UnixStream, content: &[u8]) {
    stream.write_u32(u32::try_from(content.len()).unwrap()).await.unwrap();
    // The client may have closed before the whole of it was written.
    let _ = stream.write_all(content).await;
}

#[tokio::test]
async fn a_bad_frame_loses_the_connection_and_all_that_is_open() {
    let unknown =
        serde_json::to_vec(&ExecResponse { id: 9999, body: ExecBody::Missing { paths: Vec::new() } }).unwrap();
    let too_long = vec![b' '; MAX_FRAME_BYTES + 1];
    let bad: [&[u8]; 5] = [b"", b"not json", b"{\"id\":1}", &unknown, &too_long];
    for content in bad {
        let (_folder, client, mut stream) = peer().await;
        let open = client.begin(command("true", SOON)).unwrap();
        raw(&mut stream, content).await;
        assert_eq!(open.answer().await, Err(ExecLost::OutcomeUnknown), "{}", content.len());
        eventually("the loss is counted", || client.losses() == 1).await;
    }
}

#[tokio::test]
async fn an_answer_counts_once_and_lists_are_cut() {
    let (_folder, client, mut stream) = peer().await;
    let open = client.begin(command("true", SOON)).unwrap();
    let id = request(&mut stream).await.id;
    assert_eq!(id, open.id());
    let effect = cadre_protocol::tool::WorkspaceEffect {
        files: vec!["f".into(); 5000],
        removed: vec!["r".into(); 5000],
        ..Default::default()
    };
    let response = ExecResponse { id, body: ExecBody::Done { effect } };
    send(&mut stream, &response).await;
    let answer = open.answer().await.unwrap();
    assert!(
        matches!(answer, ExecBody::Done { effect } if effect.files.len() == 200 && effect.removed.len() == 200 && effect.truncated)
    );
    send(&mut stream, &response).await;
    eventually("the second answer ends the connection", || client.losses() == 1).await;
}

#[tokio::test]
async fn nothing_is_sent_before_the_greeting_or_beyond_a_frame() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let client = ExecListener::bind(&path).unwrap().start();
    assert_eq!(client.request(command("true", SOON)).await, Err(ExecLost::NotConnected));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    client.set_epoch(Epoch(7));
    let greeting = request(&mut stream).await;
    assert!(matches!(greeting.op, ExecOp::Hello { epoch: 7, .. }));
    assert_eq!(client.request(command("true", SOON)).await, Err(ExecLost::NotConnected));
    send(&mut stream, &ExecResponse { id: greeting.id, body: ExecBody::Ready { workspace_id: "w".into() } }).await;
    client.wait_connected(SOON).await.unwrap();
    let long = "x".repeat(MAX_FRAME_BYTES);
    assert_eq!(client.request(command(&long, SOON)).await, Err(ExecLost::TooLarge));
    assert_eq!(client.losses(), 0);
}
