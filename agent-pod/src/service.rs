//! The engine process: link, runs, and an orderly end.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cadre_protocol::worker::{Assignment, HeldRun};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
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
use crate::link::state::{News, Reins, State};

/// Time that runs get to come to a good place when the process ends.
const DRAIN_TIME: Duration = Duration::from_secs(60);
/// Runs that are carried out at once. Only a pooled engine has more than one: what is above this waits for a place, can be
/// cancelled meanwhile, and its time limit counts.
const RUNS_AT_ONCE: usize = 32;
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
    slots: Arc<Semaphore>,
    runs: JoinSet<()>,
}

/// Runs an engine until `stop` is cancelled or the API server rejects it. At a stop no further tool starts, the current
/// one is waited for (60 s at most), the journal is flushed, and what is left is handed over.
///
/// # Errors
/// When a socket or folder can't be made.
pub async fn engine_main(config: EngineConfig, stop: CancellationToken) -> io::Result<EngineExit> {
    let EngineConfig { api, token, sandbox, exec, probe, enforcement, alive_file } = config;
    let (hub, news) = Hub::new();
    let mut engine = Engine {
        sandboxes: Sandboxes::open(exec)?,
        probe: NetworkProbe::new(probe, enforcement, hub.clone()),
        drain: CancellationToken::new(),
        slots: Arc::new(Semaphore::new(RUNS_AT_ONCE)),
        runs: JoinSet::new(),
        hub: hub.clone(),
    };
    let _life = alive_file.map(|path| AbortOnDropHandle::new(tokio::spawn(alive::touch(path))));
    let registration = uuid::Uuid::new_v4().to_string();
    let identity = Identity { api, token, registration, sandbox, patience: connection::PATIENCE };
    let close = CancellationToken::new();
    let link = connection::keep(&hub, &identity, &close);
    tokio::pin!(link);

    let end = tokio::select! {
        end = &mut link => Some(end),
        () = engine.work(news, &stop) => tokio::select! {
            end = &mut link => Some(end),
            () = engine.drain() => None,
        },
    };
    engine.runs.shutdown().await;
    let exit = match end {
        Some(LinkEnd::Rejected(reason)) => {
            error!(reason, "the API server rejects this worker");
            EngineExit::Rejected
        }
        Some(LinkEnd::Closed) => EngineExit::Stopped,
        None => {
            close.cancel();
            // A server that is not there any more learns it from the broken connection.
            let _ = timeout(CLOSE_TIME, link).await;
            EngineExit::Stopped
        }
    };
    engine.sandboxes.close().await;
    info!("the engine ends");
    Ok(exit)
}

impl Engine {
    /// Takes runs until it is told to stop.
    async fn work(&mut self, mut news: mpsc::UnboundedReceiver<News>, stop: &CancellationToken) {
        let mut reap = tokio::time::interval(REAP);
        loop {
            tokio::select! {
                Some(news) = news.recv() => if let News::Assigned(assignment, reins) = news {
                    let run = self.run(assignment, reins);
                    self.runs.spawn(run);
                },
                Some(_) = self.runs.join_next(), if !self.runs.is_empty() => {}
                _ = reap.tick() => self.sandboxes.reap(),
                () = stop.cancelled() => return,
            }
        }
    }

    /// Lets the runs come to a good place.
    async fn drain(&mut self) {
        info!(runs = self.runs.len(), "no further run is taken");
        self.hub.send(State::refuse_runs);
        self.drain.cancel();
        let all = async { while self.runs.join_next().await.is_some() {} };
        if timeout(DRAIN_TIME, all).await.is_err() {
            error!(runs = self.runs.len(), "runs are cut off");
        }
    }

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
        let control = Control { signal: reins.signal, drain: self.drain.clone(), slots: self.slots.clone() };
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
                Some(Arc::new(NoWorkspace::default()))
            }
        }
    }
}

/// Unix time in milliseconds.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
