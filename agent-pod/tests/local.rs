//! The engine with exec-servers as child processes, as `cadre dev` has it.

mod support;

use cadre_agent::config::ExecSource;
use cadre_agent::service::{EngineExit, engine_main};
use cadre_protocol::agent::Builtin;
use cadre_protocol::journal::Record;
use cadre_protocol::message::Role;
use support::{Server, assignment, engine, reply};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn a_command_runs_in_the_sessions_own_process_which_ends_with_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let exec = ExecSource::Spawn {
        program: env!("CARGO_BIN_EXE_cadre-agent").into(),
        args: vec!["exec-server".into()],
        workspaces_dir: folder.path().join("workspaces"),
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine_main(engine(&socket, exec), stop.clone()));
    let command = "echo $PPID > pid; echo made here; env | grep -c CARGO";
    let arguments = serde_json::json!({ "command": command }).to_string();
    let replies = vec![reply("", Some(("1", "shell", &arguments))), reply("done", None)];
    let mut server = Server::new(assignment(&[Builtin::Shell, Builtin::Files]), replies);
    let connection = server.serve(&listener, None).await;
    assert!(server.finished(), "{:?}", server.event_names());

    let results = server.journal.iter().filter_map(|entry| match &entry.record {
        Some(Record::Message(message)) if message.role == Role::Tool => Some(message.content.as_str()),
        _ => None,
    });
    assert_eq!(results.collect::<Vec<_>>(), ["exit code: 1\n--- stdout ---\nmade here\n0"]);
    let workspace = std::fs::read_dir(folder.path().join("workspaces")).unwrap().next().unwrap().unwrap().path();
    let pid = std::fs::read_to_string(workspace.join("pid")).unwrap();
    let process = format!("/proc/{}", pid.trim());
    assert!(std::path::Path::new(&process).exists());

    stop.cancel();
    drop(connection);
    assert_eq!(running.await.unwrap().unwrap(), EngineExit::Stopped);
    assert!(!std::path::Path::new(&process).exists(), "the exec-server is gone");
}
