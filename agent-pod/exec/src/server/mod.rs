//! exec-server: dials the engine's socket and does what it asks, in the sandbox container.
//!
//! It takes over every child of its process, so it must be the only thing that runs in one.

mod answer;
mod session;

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::prctl::{set_child_subreaper, set_dumpable};
use nix::unistd::{Gid, Uid, User};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tracing::{debug, info};

use crate::process::{Processes, Shell, supervise};
use crate::room::{Bounded, Room};
use crate::workspace::Workspace;
use session::Session;

/// First and longest time between two attempts to reach the engine.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Settings of exec-server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The engine's Unix socket.
    pub socket: PathBuf,
    /// The workspace folder. Made if missing, like the two below.
    pub workspace: PathBuf,
    /// `HOME` of commands.
    pub home: PathBuf,
    /// `TMPDIR` of commands.
    pub tmp: PathBuf,
    /// User and group that commands run as, and that files written here belong to; `None` keeps the server's own.
    pub run_as: Option<(u32, u32)>,
    /// Shell that runs commands with `-c`; `None` takes `bash`, or `sh` where there is none.
    pub shell: Option<PathBuf>,
    /// Folders that must not be filled: commands that do are ended in time.
    pub bounded: Vec<Bounded>,
    /// Further variables of commands; they replace the ones above of the same name, but for `PWD`.
    pub env: Vec<(String, String)>,
}

/// Why exec-server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A folder cannot be made.
    #[error("cannot prepare {path}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The workspace cannot be used.
    #[error("cannot use the workspace: {0}")]
    Workspace(String),
    /// The process cannot be protected or made the reaper of its descendants.
    #[error("cannot set up the process")]
    Process(#[source] nix::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
}

/// Serves the engine until SIGTERM has come and no engine is connected. Every process that was started here is ended
/// before it returns. An engine that is absent is waited for, one that went away as well.
///
/// # Errors
/// When the folders, the process or the signals cannot be set up.
pub async fn run(config: ServerConfig) -> Result<(), ServerError> {
    // Commands run as the same user: without this they could read this process's memory and descriptors.
    set_dumpable(false).map_err(ServerError::Process)?;
    set_child_subreaper(true).map_err(ServerError::Process)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServerError::Signals)?;
    let processes = Arc::new(Processes::default());
    let room = Arc::new(Room::new(config.bounded.clone(), &config.workspace));
    let session = Arc::new(prepare(&config, Arc::clone(&processes), Arc::clone(&room))?);
    let ended = async {
        tokio::select! {
            () = serve(&config.socket, &session, &mut terminate) => {
                processes.stop_all().await;
                Ok(())
            },
            failed = supervise(Arc::clone(&processes)) => failed.map_err(ServerError::Signals),
            () = room.keep(&processes) => Ok(()),
        }
    };
    ended.await
}

fn prepare(config: &ServerConfig, processes: Arc<Processes>, room: Arc<Room>) -> Result<Session, ServerError> {
    let ServerConfig { socket: _, workspace, home, tmp, run_as, shell, bounded: _, env } = config;
    for folder in [workspace, home, tmp] {
        make(folder, *run_as).map_err(|source| ServerError::Folder { path: folder.clone(), source })?;
    }
    let owner = run_as.map(|(user, group)| (Uid::from_raw(user), Gid::from_raw(group)));
    let user = User::from_uid(owner.map_or_else(Uid::current, |(user, _)| user)).ok().flatten();
    let user = user.map_or_else(|| "agent".to_owned(), |user| user.name);
    let shell = Shell::new(shell.as_deref(), [workspace, home, tmp], &user, *run_as, env);
    let workspace = Workspace::open(workspace, owner).map_err(|failure| ServerError::Workspace(failure.message))?;
    Ok(Session::new(processes, shell, workspace, room))
}

fn make(folder: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    owner.map_or(Ok(()), |(user, group)| chown(folder, Some(user), Some(group)))
}

/// Connects, serves, and connects again, until SIGTERM came and nobody is connected.
async fn serve(socket: &Path, session: &Arc<Session>, terminate: &mut Signal) {
    let mut delay = BACKOFF.0;
    loop {
        let stream = tokio::select! {
            _ = terminate.recv() => return,
            stream = connect(socket, &mut delay) => stream,
        };
        info!("connected to the engine");
        let since = Instant::now();
        let mut terminating = false;
        let conversation = Arc::clone(session).serve(stream);
        tokio::pin!(conversation);
        loop {
            tokio::select! {
                () = &mut conversation => break,
                _ = terminate.recv() => terminating = true,
            }
        }
        info!(terminating, "the engine is gone");
        if terminating {
            return;
        }
        if since.elapsed() > BACKOFF.1 {
            delay = BACKOFF.0;
        }
    }
}

/// Tries until it succeeds, the first time after `delay`, which grows: an engine that closes at once is spared too.
async fn connect(socket: &Path, delay: &mut Duration) -> UnixStream {
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                *delay = (*delay * 2).min(BACKOFF.1);
                return stream;
            }
            Err(error) => debug!(%error, "the engine is not there"),
        }
        sleep(*delay).await;
        *delay = (*delay * 2).min(BACKOFF.1);
    }
}
