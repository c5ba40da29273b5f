//! Workers of `cadre dev`: child processes of this one, pooled, restarted when they end.
//!
//! A child gets a cleared environment. Its token is the first line of its standard input, which stays open as long as
//! this process lives: a worker ends when it is closed.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use cadre_protocol::ids::{ComponentRef, SessionId, WorkerId};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Placement, PlacementError, PlacementEvent, Wanted};
use crate::auth::pod::LocalAuth;

/// A worker that lived this long did not fail at its start.
const GOOD_LIFE: Duration = Duration::from_secs(30);
/// Time that workers get to end by themselves.
const FAREWELL: Duration = Duration::from_secs(5);

/// How workers are started.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    /// The program; usually this one.
    pub program: PathBuf,
    /// Its arguments, for example `["__worker", "--api", "unix:/…/link.sock"]`.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// How many.
    pub workers: u32,
    /// Where sessions have their folders.
    pub workspaces: PathBuf,
}

struct Pool {
    options: ProcessOptions,
    auth: LocalAuth,
    next: AtomicU32,
    events: broadcast::Sender<PlacementEvent>,
    stop: CancellationToken,
}

/// The pool.
pub struct ProcessPlacement {
    pool: Arc<Pool>,
    tasks: TaskTracker,
}

impl ProcessPlacement {
    /// Starts the workers; they dial until the link is there.
    #[must_use]
    pub fn start(options: ProcessOptions, auth: LocalAuth) -> Self {
        let workers = options.workers.max(1);
        let (events, stop) = (broadcast::Sender::new(64), CancellationToken::new());
        let pool = Arc::new(Pool { options, auth, next: AtomicU32::new(0), events, stop });
        let tasks = TaskTracker::new();
        for _ in 0..workers {
            tasks.spawn(pool.clone().keep());
        }
        tasks.close();
        Self { pool, tasks }
    }

    /// Ends the workers.
    pub async fn stop(&self) {
        self.pool.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Pool {
    /// Keeps one worker running.
    async fn keep(self: Arc<Self>) {
        let pauses =
            || ExponentialBuilder::new().with_min_delay(Duration::from_millis(50)).with_jitter().without_max_times();
        let mut pause = pauses().with_max_delay(Duration::from_secs(10)).build();
        while !self.stop.is_cancelled() {
            let (number, began) = (self.next.fetch_add(1, Ordering::Relaxed), Instant::now());
            match self.live(number).await {
                Ok(status) => tracing::info!(number, status, "worker process ended"),
                Err(error) => tracing::error!(number, error = %error, "worker process could not be started"),
            }
            if let Ok(worker_id) = WorkerId::new(format!("local/{number}")) {
                let _ = self.events.send(PlacementEvent::Ended(worker_id));
            }
            if began.elapsed() > GOOD_LIFE {
                pause = pauses().with_max_delay(Duration::from_secs(10)).build();
            }
            tokio::select! {
                () = tokio::time::sleep(pause.next().unwrap_or(Duration::from_secs(10))) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Runs one process to its end; answers its exit status in words.
    async fn live(&self, number: u32) -> std::io::Result<String> {
        let mut child = Command::new(&self.options.program)
            .args(&self.options.args)
            .env_clear()
            .envs(self.options.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            stdin.write_all(format!("{}\n", self.auth.token(number)).as_bytes()).await?;
            stdin.flush().await?;
        }
        tokio::select! {
            status = child.wait() => Ok(status?.to_string()),
            () = self.stop.cancelled() => {
                drop(stdin);
                end(&mut child).await
            }
        }
    }
}

async fn end(child: &mut Child) -> std::io::Result<String> {
    match tokio::time::timeout(FAREWELL, child.wait()).await {
        Ok(status) => Ok(status?.to_string()),
        Err(_) => {
            child.kill().await?;
            Ok("killed".to_owned())
        }
    }
}

#[async_trait]
impl Placement for ProcessPlacement {
    async fn ensure(&self, _wanted: &Wanted) -> Result<(), PlacementError> {
        Ok(())
    }

    fn lost(&self, _worker_id: &WorkerId) {}

    async fn retire(&self, _session_id: &SessionId, _component: &ComponentRef) -> Result<(), PlacementError> {
        Ok(())
    }

    /// Its files; what still runs there ends when its worker finds them gone.
    async fn remove(&self, session_id: &SessionId, _component: &ComponentRef) -> Result<(), PlacementError> {
        let folder = self.pool.options.workspaces.join(session_id.folder_name());
        match tokio::fs::remove_dir_all(&folder).await {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(PlacementError::Unavailable(format!("its files can't be removed: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn events(&self) -> broadcast::Receiver<PlacementEvent> {
        self.pool.events.subscribe()
    }

    fn workers_survive(&self) -> bool {
        false
    }
}
