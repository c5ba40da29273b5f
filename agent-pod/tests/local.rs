//! The engine with exec-servers as child processes, as `cadre dev` has it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail so")]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cadre_agent::config::ExecSource;
use cadre_agent::service::{EngineExit, engine_main};
use cadre_protocol::agent::Builtin;
use cadre_protocol::journal::Record;
use cadre_protocol::message::Role;
use cadre_protocol::run::RunEnd;
use cadre_protocol::worker::ServerFrame;
use support::{Connection, Server, assignment, engine, reply};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Local {
    folder: TempDir,
    listener: UnixListener,
    stop: CancellationToken,
    running: JoinHandle<std::io::Result<EngineExit>>,
    server: Server,
}

/// An engine that is asked to run this command.
fn start(command: &str) -> Local {
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
    let arguments = serde_json::json!({ "command": command }).to_string();
    let replies = vec![reply("", Some(("1", "shell", &arguments))), reply("done", None)];
    let server = Server::new(assignment(&[Builtin::Shell, Builtin::Files]), replies);
    Local { folder, listener, stop, running, server }
}

impl Local {
    fn results(&self) -> Vec<&str> {
        let results = self.server.journal.iter().filter_map(|entry| match &entry.record {
            Some(Record::Message(message)) if message.role == Role::Tool => Some(message.content.as_str()),
            _ => None,
        });
        results.collect()
    }

    /// The process whose id the command wrote into `pid`; waits for it.
    async fn process(&self) -> PathBuf {
        loop {
            if let Some(pid) = self.number_in("pid") {
                return Path::new("/proc").join(pid);
            }
            tokio::task::yield_now().await;
        }
    }

    /// What the command wrote into a file, once it is there as a line.
    fn number_in(&self, file: &str) -> Option<String> {
        let workspace = std::fs::read_dir(self.folder.path().join("workspaces")).ok()?.next()?.ok()?;
        let line = std::fs::read_to_string(workspace.path().join(file)).ok()?;
        line.strip_suffix('\n').map(str::to_owned)
    }

    /// Serves until a tool has started.
    async fn until_the_tool_runs(&mut self) -> Connection {
        let mut connection = Connection::accept(&self.listener).await;
        connection.welcome().await;
        connection.send(ServerFrame::Assign(Box::new(self.server.assignment.clone()))).await;
        while !self.server.event_names().contains(&"ToolCallStarted") {
            self.serve_one(&mut connection).await;
        }
        connection
    }

    async fn serve_one(&mut self, connection: &mut Connection) -> bool {
        let Some(frame) = connection.receive().await else { return false };
        for answer in self.server.take(frame) {
            connection.send(answer).await;
        }
        true
    }
}

#[tokio::test]
async fn a_command_runs_in_the_sessions_own_process_which_ends_with_the_engine() {
    let mut local = start("echo $PPID > pid; echo made here; env | grep -c CARGO");
    let mut connection = local.server.serve(&local.listener, None).await.unwrap();
    assert!(local.server.finished(), "{:?}", local.server.event_names());
    assert_eq!(local.results(), ["exit code: 1\n--- stdout ---\nmade here\n0"]);
    let process = local.process().await;
    assert!(process.exists());

    local.stop.cancel();
    while local.serve_one(&mut connection).await {}
    assert_eq!(local.running.await.unwrap().unwrap(), EngineExit::Stopped);
    assert!(!process.exists(), "the exec-server is gone");
}

#[tokio::test]
async fn a_cancel_kills_the_command() {
    let mut local = start("echo $$ > pid; sleep 1000 & wait");
    let mut connection = local.until_the_tool_runs().await;
    let process = local.process().await;
    let cancelled = Instant::now();
    let (run_id, epoch) = (local.server.assignment.run_id.clone(), local.server.assignment.epoch);
    connection.send(ServerFrame::Cancel { run_id, epoch, reason: "a user".into() }).await;
    while !local.server.finished() {
        assert!(local.serve_one(&mut connection).await);
    }
    assert!(cancelled.elapsed() < Duration::from_secs(10));
    let end = RunEnd::Cancelled { content: String::new(), reason: "a user".into() };
    assert_eq!(local.server.journal.last().unwrap().record, Some(Record::Finished(end)));
    while process.exists() {
        tokio::task::yield_now().await;
    }
    local.stop.cancel();
    while local.serve_one(&mut connection).await {}
    assert_eq!(local.running.await.unwrap().unwrap(), EngineExit::Stopped);
}

#[tokio::test]
async fn a_command_that_kills_its_exec_server_does_not_outlive_it() {
    let far = "setsid sh -c 'echo $$ > far; exec sleep 1000' & until [ -s far ]; do sleep 0.01; done";
    let mut local = start(&format!("{far}; echo $$ > pid; kill -9 $PPID; sleep 1000"));
    let mut connection = local.until_the_tool_runs().await;
    let process = local.process().await;
    let far = process.with_file_name(local.number_in("far").unwrap());
    while !local.server.finished() {
        assert!(local.serve_one(&mut connection).await);
    }
    assert!(local.results()[0].contains("unknown"), "{:?}", local.results());
    let gone = async {
        while process.exists() || far.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    local.stop.cancel();
    while local.serve_one(&mut connection).await {}
    assert_eq!(local.running.await.unwrap().unwrap(), EngineExit::Stopped);
}

#[tokio::test]
async fn an_engine_that_is_stopped_waits_for_its_tool_and_hands_the_run_over() {
    let mut local = start("mkfifo go; echo $$ > pid; read line < go; echo $line");
    let mut connection = local.until_the_tool_runs().await;
    let process = local.process().await;
    local.stop.cancel();
    let go = std::fs::read_link(process.join("cwd")).unwrap().join("go");
    std::fs::write(&go, "finished all the same\n").unwrap();
    while local.serve_one(&mut connection).await {}
    assert!(local.server.draining);
    assert_eq!(local.results(), ["finished all the same"]);
    assert!(!local.server.finished(), "another engine goes on");
    assert_eq!(local.running.await.unwrap().unwrap(), EngineExit::Stopped);
}
