//! Where tools run: the sandbox container's exec-server, or a child process for each session.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cadre_exec::client::{ExecClient, ExecListener, ExecLost};
use cadre_exec::orphans;
use cadre_protocol::exec::{ExecBody, ExecOp};
use cadre_protocol::ids::{Epoch, SessionId};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::ExecSource;
use crate::engine::ports::{Lost, Workspace};
use crate::engine::uploads::Brought;

/// How long a tool waits for exec-server.
const READY_TIME: Duration = Duration::from_secs(60);
/// How long a session's child process stays without a run.
const IDLE_TIME: Duration = Duration::from_secs(300);
/// Pause before an exec-server that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Time for an exec-server to end by itself.
const LEAVE_TIME: Duration = Duration::from_secs(6);

/// All workspaces of an engine.
pub struct Sandboxes {
    source: Source,
    children: TaskTracker,
}

enum Source {
    None,
    Container(Arc<ExecWorkspace>),
    Children { spawner: Spawner, sessions: Mutex<HashMap<SessionId, Session>> },
}

struct Spawner {
    program: PathBuf,
    args: Vec<String>,
    workspaces_dir: PathBuf,
    /// Holds the sockets; short, because a socket's path may have 107 bytes only.
    sockets_dir: PathBuf,
}

struct Session {
    workspace: Arc<ExecWorkspace>,
    folder: PathBuf,
    last_used: Instant,
    stop: CancellationToken,
}

impl Sandboxes {
    /// Opens what the source needs. Must be called within the runtime.
    ///
    /// # Errors
    /// When a socket or a folder can't be made.
    pub fn open(source: ExecSource) -> io::Result<Self> {
        let source = match source {
            ExecSource::None => Source::None,
            ExecSource::Socket(path) => Source::Container(Arc::new(ExecWorkspace::listen(&path)?)),
            ExecSource::Spawn { program, args, workspaces_dir } => {
                orphans::take_over()?;
                let sockets_dir = std::env::temp_dir().join(format!("cadre-{}", uuid::Uuid::new_v4().simple()));
                make_private_folder(&sockets_dir)?;
                let spawner = Spawner { program, args, workspaces_dir, sockets_dir };
                Source::Children { spawner, sessions: Mutex::default() }
            }
        };
        Ok(Self { source, children: TaskTracker::new() })
    }

    /// The workspace of a session, for a run with this epoch. None when there are no sandboxes.
    ///
    /// # Errors
    /// When a socket or a folder can't be made.
    pub fn workspace(&self, session: &SessionId, epoch: Epoch) -> io::Result<Option<Arc<dyn Workspace>>> {
        let workspace = match &self.source {
            Source::None => return Ok(None),
            Source::Container(workspace) => workspace.clone(),
            Source::Children { spawner, sessions } => {
                let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
                let found = match sessions.remove(session) {
                    Some(found) if found.folder.is_dir() => found,
                    gone => {
                        // The session was deleted with its files, and this is another one of that id.
                        gone.into_iter().for_each(|session| session.stop.cancel());
                        self.start(spawner, session)?
                    }
                };
                let workspace = found.workspace.clone();
                sessions.insert(session.clone(), Session { last_used: Instant::now(), ..found });
                workspace
            }
        };
        workspace.raise_epoch(epoch);
        Ok(Some(workspace))
    }

    fn start(&self, spawner: &Spawner, session: &SessionId) -> io::Result<Session> {
        let folder = spawner.workspaces_dir.join(session.folder_name());
        std::fs::create_dir_all(&folder)?;
        // An earlier exec-server of the session may still be leaving its own.
        let socket = spawner.sockets_dir.join(uuid::Uuid::new_v4().simple().to_string());
        let workspace = Arc::new(ExecWorkspace::listen(&socket)?);
        let stop = CancellationToken::new();
        self.children.spawn(supervise(spawner.command(&socket, &folder), stop.clone()));
        Ok(Session { workspace, folder, last_used: Instant::now(), stop })
    }

    /// Ends child processes of sessions that had no run for a while, or whose files are gone.
    pub fn reap(&self) {
        let Source::Children { sessions, .. } = &self.source else { return };
        let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| {
            if Arc::strong_count(&session.workspace) > 1 {
                session.last_used = Instant::now();
            }
            let keep = session.last_used.elapsed() < IDLE_TIME && session.folder.is_dir();
            if !keep {
                session.stop.cancel();
            }
            keep
        });
    }

    /// Ends all child processes.
    pub async fn close(&self) {
        let Source::Children { sessions, spawner } = &self.source else { return };
        for (_, session) in sessions.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            session.stop.cancel();
        }
        self.children.close();
        self.children.wait().await;
        if let Err(error) = std::fs::remove_dir_all(&spawner.sockets_dir) {
            warn!(%error, "could not remove the folder of sockets");
        }
    }
}

fn make_private_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

impl Spawner {
    /// The environment is cleared: nothing of the engine's reaches a tool.
    fn command(&self, socket: &Path, workspace: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg("--socket").arg(socket).arg("--workspace").arg(workspace);
        command.arg("--die-with-parent").env_clear().stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
    }
}

/// Keeps an exec-server running until it is told to stop.
async fn supervise(mut command: Command, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match orphans::start(&mut command) {
            Ok(mut started) => {
                // Waiting for a child closes its standard input, unless that was taken away.
                let input = started.child.stdin.take();
                tokio::select! {
                    ended = started.child.wait() => warn!(status = ?ended.ok().and_then(|status| status.code()), "an exec-server ended"),
                    () = stop.cancelled() => leave(&mut started.child, input).await,
                }
                started.clean_up().await;
            }
            Err(error) => warn!(%error, "could not start an exec-server"),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(RESTART_PAUSE) => {}
        }
    }
}

/// The end of its standard input tells exec-server to leave, so that it can end what it runs.
async fn leave(child: &mut Child, input: Option<ChildStdin>) {
    drop(input);
    if tokio::time::timeout(LEAVE_TIME, child.wait()).await.is_err()
        && let Err(error) = child.kill().await
    {
        info!(%error, "an exec-server was gone before it was killed");
    }
}

/// One exec-server, as the engine sees it.
struct ExecWorkspace {
    client: ExecClient,
    epoch: Mutex<Option<Epoch>>,
    brought: Brought,
}

impl ExecWorkspace {
    fn listen(socket: &Path) -> io::Result<Self> {
        Ok(Self { client: ExecListener::bind(socket)?.start(), epoch: Mutex::default(), brought: Brought::default() })
    }

    fn raise_epoch(&self, epoch: Epoch) {
        let mut current = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if current.is_none_or(|current| current < epoch) {
            *current = Some(epoch);
            self.client.set_epoch(epoch);
        }
    }
}

fn lost(lost: ExecLost) -> Lost {
    Lost { reason: lost.to_string(), may_have_happened: lost.may_have_happened() }
}

#[async_trait]
impl Workspace for ExecWorkspace {
    async fn ready(&self) -> Result<String, Lost> {
        self.client.wait_connected(READY_TIME).await.map_err(lost)
    }

    async fn request(&self, op: ExecOp) -> Result<ExecBody, Lost> {
        self.ready().await?;
        let is_command = matches!(op, ExecOp::Run { .. });
        let in_flight = self.client.begin(op).map_err(lost)?;
        let mut kill = KillOnDrop { client: &self.client, target: is_command.then(|| in_flight.id()) };
        let answer = in_flight.answer().await.map_err(lost);
        kill.target = None;
        answer
    }

    fn brought(&self) -> &Brought {
        &self.brought
    }
}

/// A workspace that could not be made.
#[derive(Default)]
pub struct NoWorkspace(Brought);

impl NoWorkspace {
    fn lost() -> Lost {
        Lost { reason: "the session's workspace could not be made".into(), may_have_happened: false }
    }
}

#[async_trait]
impl Workspace for NoWorkspace {
    async fn ready(&self) -> Result<String, Lost> {
        Err(Self::lost())
    }

    async fn request(&self, _: ExecOp) -> Result<ExecBody, Lost> {
        Err(Self::lost())
    }

    fn brought(&self) -> &Brought {
        &self.0
    }
}

/// Ends a command that nobody waits for any more.
struct KillOnDrop<'a> {
    client: &'a ExecClient,
    target: Option<u64>,
}

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(target) = self.target {
            // Where the connection is gone, exec-server ends the command itself at the next greeting.
            let _ = self.client.begin(ExecOp::Kill { target });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_lives_until_it_is_told_to_leave() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo > started; cat; echo > left"]).current_dir(folder.path()).stdin(Stdio::piped());
        let stop = CancellationToken::new();
        let supervised = tokio::spawn(supervise(command, stop.clone()));
        let (started, left) = (folder.path().join("started"), folder.path().join("left"));
        while !started.exists() {
            tokio::task::yield_now().await;
        }
        let gone = async {
            while !left.exists() {
                tokio::task::yield_now().await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_millis(200), gone).await.is_err(), "it left by itself");
        stop.cancel();
        supervised.await.unwrap();
        assert!(left.exists());
    }
}
