//! The engine process: link, runs, and an orderly end.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cadre_protocol::worker::{Assignment, HeldRun};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::alive;
use crate::config::EngineConfig;
use crate::engine::ports::{Control, Host, Workspace};
use crate::engine::turn;
use crate::exec_source::{NoWorkspace, Sandboxes};
use crate::isolation::NetworkProbe;
use crate::link::connection::{self, Identity, LinkEnd};
use crate::link::hub::Hub;
use crate::link::ports::RunLink;
use crate::link::state::{News, Reins};

/// Time that runs get to come to a good place when the process ends.
const DRAIN_TIME: Duration = Duration::from_secs(60);
/// Time for the last frames.
const CLOSE_TIME: Duration = Duration::from_secs(6);
const REAP: Duration = Duration::from_secs(60);

/// How an engine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineExit {
    /// As asked.
    Stopped,
    /// The API server does not want this worker: starting it again won't help.
    Rejected,
}

impl EngineExit {
    /// The process's exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Stopped => 0,
            Self::Rejected => 3,
        }
    }
}

struct Engine {
    hub: Hub,
    sandboxes: Sandboxes,
    probe: NetworkProbe,
    drain: CancellationToken,
}

/// Runs an engine until `stop` is cancelled or the API server rejects it. At a stop no further tool starts, the current
/// one is waited for (60 s at most), the journal is flushed, and what is left is handed over.
///
/// # Errors
/// When a socket or folder can't be made.
pub async fn engine_main(config: EngineConfig, stop: CancellationToken) -> io::Result<EngineExit> {
    let EngineConfig { api, token, sandbox, exec, probe, enforcement, alive_file } = config;
    let (hub, mut news) = Hub::new();
    let engine = Engine {
        sandboxes: Sandboxes::open(exec)?,
        probe: NetworkProbe::new(probe, enforcement, hub.clone()),
        drain: CancellationToken::new(),
        hub: hub.clone(),
    };
    let close = CancellationToken::new();
    let registration = uuid::Uuid::new_v4().to_string();
    let identity = Identity { api, token, registration, sandbox };
    let link = connection::keep(&hub, &identity, &close);
    tokio::pin!(link);
    let life = async {
        match &alive_file {
            Some(path) => alive::touch(path).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(life);
    let mut runs = JoinSet::new();
    let mut reap = tokio::time::interval(REAP);
    let stopping = async {
        stop.cancelled().await;
        info!("no further run is taken");
        engine.hub.send(|state| state.refuse_runs());
        engine.drain.cancel();
    };
    tokio::pin!(stopping);

    let mut deadline = None;
    let exit = loop {
        let expired = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(news) = news.recv() => if let News::Assigned(assignment, reins) = news {
                runs.spawn(engine.run(assignment, reins));
            },
            Some(_) = runs.join_next(), if !runs.is_empty() => {}
            () = &mut stopping, if deadline.is_none() => deadline = Some(tokio::time::Instant::now() + DRAIN_TIME),
            () = expired => break EngineExit::Stopped,
            end = &mut link => match end {
                LinkEnd::Closed => break EngineExit::Stopped,
                LinkEnd::Rejected(reason) => {
                    error!(reason, "the API server rejects this worker");
                    break EngineExit::Rejected;
                }
            },
            _ = reap.tick() => engine.sandboxes.reap(),
            () = &mut life => {}
        }
        if deadline.is_some() && runs.is_empty() {
            break EngineExit::Stopped;
        }
    };
    runs.shutdown().await;
    if exit == EngineExit::Stopped {
        close.cancel();
        let _ = timeout(CLOSE_TIME, &mut link).await;
    }
    engine.sandboxes.close().await;
    info!("the engine ends");
    Ok(exit)
}

impl Engine {
    /// The work of a run, as a future of its own.
    fn run(&self, assignment: Box<Assignment>, reins: Reins) -> impl Future<Output = ()> + Send + use<> {
        let held = HeldRun { run_id: assignment.run_id.clone(), epoch: assignment.epoch };
        let link = RunLink::new(self.hub.clone(), held.clone(), &reins);
        let host = Host {
            journal: link.clone(),
            models: link.clone(),
            remote: link.clone(),
            blobs: link,
            workspace: self.workspace(&assignment),
            isolation: Arc::new(self.probe.clone()),
            clock: now_ms,
        };
        let control = Control { signal: reins.signal, drain: self.drain.clone() };
        let hub = self.hub.clone();
        async move {
            info!(run_id = %held.run_id, epoch = %held.epoch, attempt = assignment.attempt, "a run begins");
            let exit = turn::run(*assignment, host, control).await;
            hub.with(|state| state.release(&held));
            info!(run_id = %held.run_id, epoch = %held.epoch, ?exit, "a run is let go");
        }
    }

    fn workspace(&self, assignment: &Assignment) -> Option<Arc<dyn Workspace>> {
        if !assignment.agent.needs_sandbox() {
            return None;
        }
        match self.sandboxes.workspace(&assignment.session_id, assignment.epoch) {
            Ok(workspace) => workspace,
            Err(error) => {
                error!(run_id = %assignment.run_id, %error, "could not make a workspace");
                Some(Arc::new(NoWorkspace))
            }
        }
    }
}

/// Unix time in milliseconds.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
