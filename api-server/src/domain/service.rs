//! The domain's door: a cheap handle that routes, the worker port and the operator's door share.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cadre_protocol::feed::IsolationReport;
use cadre_protocol::ids::{ComponentRef, RunId, WorkerId};
use cadre_store::Store;
use cadre_store::rows::{Ends, Principal, QueueStats, RunDetail, RunFilter, RunRow};
use cadre_store::workers::ReplicaId;
use tokio::sync::{Notify, broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::DomainError;
use super::board::Board;
use super::hub::Hub;
use super::replicas::Contact;
use super::schema::SchemaState;
use super::seat::IdleSeat;
use super::shares::NamespaceShares;
use super::upkeep::Retention;
use crate::catalog::{Catalog, CatalogAgent};
use crate::metrics::Metrics;
use crate::placement::Placement;
use crate::telemetry::Traces;

/// Something that the operator may want to show.
#[derive(Debug, Clone)]
pub enum Change {
    /// A run that a Run object made.
    Run(RunId),
    /// The load of some agent.
    Load,
    /// A Sandbox's network.
    Isolation(IsolationReport),
}

/// Bounds.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most waiting runs over all agents; 0 means no limit.
    pub max_queue_depth: u32,
    /// Most sessions that run at once over all replicas; 0 means no limit.
    pub max_running: u32,
    /// What each namespace may take of that.
    pub shares: NamespaceShares,
    /// How long a submission waits for an agent that is not in the catalog yet.
    pub agent_wait: Duration,
    /// How long a broken connection may take to come back.
    pub reconnect_grace: Duration,
    /// How long a worker may be there without ever having run anything.
    pub unused_wait: Duration,
    /// Time between looks for runs that nobody takes care of.
    pub sweep_every: Duration,
    /// Time until a worker that could not be ended is tried again.
    pub retire_again: Duration,
    /// How long a replica is not heard of until it counts as dead and its workers, which have not dialled in elsewhere, as
    /// lost.
    pub return_time: Duration,
    /// Time between two signs of life of this replica.
    pub beat_every: Duration,
    /// How long a run may take to obey a cancel or its deadline before the server ends it.
    pub obey_grace: Duration,
    /// How long the operator is told of a run of a Run object after its end when it connects. Later it asks for it.
    pub ended_runs_told: Duration,
    /// How long things are kept.
    pub retention: Retention,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_queue_depth: 10_000,
            max_running: 0,
            shares: NamespaceShares::default(),
            agent_wait: Duration::from_secs(2),
            reconnect_grace: Duration::from_secs(3),
            unused_wait: Duration::from_secs(60),
            sweep_every: Duration::from_secs(5),
            retire_again: Duration::from_secs(30),
            return_time: Duration::from_secs(15),
            beat_every: Duration::from_secs(2),
            obey_grace: Duration::from_secs(10),
            ended_runs_told: Duration::from_secs(600),
            retention: Retention::default(),
        }
    }
}

/// What the service is made of.
pub struct Parts {
    /// The record.
    pub store: Arc<dyn Store>,
    /// What there is.
    pub catalog: Arc<dyn Catalog>,
    /// The maker of workers.
    pub placement: Arc<dyn Placement>,
    /// Bounds.
    pub limits: Limits,
    /// Namespace whose agents have ids without a dot.
    pub default_namespace: String,
    /// Counters.
    pub metrics: Metrics,
    /// Where traces go.
    pub traces: Traces,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) placement: Arc<dyn Placement>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
    pub(crate) hub: Hub,
    pub(crate) schema: SchemaState,
    /// This process, in the record.
    pub(crate) replica: ReplicaId,
    /// Whether there may be others.
    pub(crate) shared: bool,
    /// Since when this replica has been in touch with the record.
    pub(crate) contact: Mutex<Contact>,
    /// Wakes the sweep.
    pub(crate) sweep_now: Notify,
    /// Whether runs wait for the place of another session's worker.
    pub(crate) held_up: AtomicBool,
    pub(crate) stopping: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) changes: broadcast::Sender<Change>,
    pub(crate) idle: mpsc::UnboundedSender<(Duration, IdleSeat)>,
    idle_receiver: Mutex<Option<mpsc::UnboundedReceiver<(Duration, IdleSeat)>>>,
    board: Mutex<Board>,
    pub(crate) isolation: Mutex<BTreeMap<WorkerId, IsolationReport>>,
    default_namespace: String,
}

/// The domain. Clones share everything.
#[derive(Clone)]
pub struct Service(pub(crate) Arc<Inner>);

impl Service {
    /// A service; [`Self::start`] lets it recover what an earlier process left and look after what waits.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { store, catalog, placement, limits, default_namespace, metrics, traces } = parts;
        let (idle, idle_receiver) = mpsc::unbounded_channel();
        Self(Arc::new(Inner {
            catalog,
            placement,
            limits,
            metrics,
            traces,
            hub: Hub::default(),
            schema: SchemaState::default(),
            replica: ReplicaId::generate(),
            shared: store.changes().is_some(),
            store,
            contact: Mutex::default(),
            sweep_now: Notify::new(),
            held_up: AtomicBool::default(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            changes: broadcast::Sender::new(1024),
            idle,
            idle_receiver: Mutex::new(Some(idle_receiver)),
            board: Mutex::default(),
            isolation: Mutex::default(),
            default_namespace,
        }))
    }

    /// Starts what runs in the background. Once.
    pub fn start(&self) {
        let receiver = self.0.idle_receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(receiver) = receiver else { return };
        self.spawn(self.clone().show_life());
        self.spawn(self.clone().sweep());
        self.spawn(self.clone().watch_record());
        self.spawn(self.clone().watch_placement());
        self.spawn(self.clone().retire_idle(receiver));
        self.spawn(self.clone().upkeep());
    }

    /// Refuses new runs, ends streams and background work. Runs stay with their workers, which dial in again.
    pub async fn stop(&self) {
        self.0.stopping.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Fires when the server stops.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.0.stopping
    }

    /// What happens to runs, agents' load and networks, for the operator's feed.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.0.changes.subscribe()
    }

    /// Resolved resources.
    #[must_use]
    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.0.catalog
    }

    /// Bounds.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Counters.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Connected workers and running sessions of this replica.
    #[must_use]
    pub fn worker_counts(&self) -> (usize, usize) {
        self.board().counts()
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.0.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task that [`Self::stop`] waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn(task);
    }

    /// The namespace whose agents have ids without a dot.
    #[must_use]
    pub fn default_namespace(&self) -> &str {
        &self.0.default_namespace
    }

    /// The component that an agent id of the API means.
    #[must_use]
    pub fn component(&self, agent_id: &str) -> ComponentRef {
        ComponentRef::parse_agent(agent_id, &self.0.default_namespace)
    }

    /// The record, for blobs, schema checks and migrations.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// All agents.
    #[must_use]
    pub fn agents(&self) -> Vec<CatalogAgent> {
        self.0.catalog.agents()
    }

    /// An agent.
    #[must_use]
    pub fn agent(&self, component: &ComponentRef) -> Option<CatalogAgent> {
        self.0.catalog.agent(component)
    }

    /// A run. `principal` limits it to its own.
    ///
    /// # Errors
    /// [`DomainError::RunNotFound`].
    pub async fn run(&self, run_id: &RunId, principal: Option<&Principal>) -> Result<RunRow, DomainError> {
        let run = match principal {
            Some(owner) => self.0.store.run_of(run_id, owner).await?,
            None => self.0.store.run(run_id).await?,
        };
        run.ok_or_else(|| DomainError::RunNotFound(run_id.to_string()))
    }

    /// A run with its messages and tool calls. `principal` limits it to its own.
    ///
    /// # Errors
    /// [`DomainError::RunNotFound`].
    pub async fn detail(&self, run_id: &RunId, principal: Option<&Principal>) -> Result<RunDetail, DomainError> {
        let detail = self.0.store.detail(run_id, principal).await?;
        detail.ok_or_else(|| DomainError::RunNotFound(run_id.to_string()))
    }

    /// Runs, newest first, with the number of all that match.
    ///
    /// # Errors
    /// The record's.
    pub async fn list(&self, filter: RunFilter) -> Result<(Vec<RunRow>, u64), DomainError> {
        Ok(self.0.store.list(filter).await?)
    }

    /// A page of the runs of Run objects that an operator has to be told of at `now_ms`: those that have not ended, and
    /// those that ended a moment ago.
    ///
    /// # Errors
    /// The record's.
    pub async fn runs_to_tell(&self, now_ms: u64, offset: u64, limit: u64) -> Result<Vec<RunRow>, DomainError> {
        let told = u64::try_from(self.0.limits.ended_runs_told.as_millis()).unwrap_or(u64::MAX);
        let ends = Ends::NoneBefore(now_ms.saturating_sub(told));
        let filter = RunFilter { run_objects_only: true, ends, offset, limit, ..RunFilter::default() };
        Ok(self.list(filter).await?.0)
    }

    /// Counts of runs.
    ///
    /// # Errors
    /// The record's.
    pub async fn stats(&self) -> Result<QueueStats, DomainError> {
        Ok(self.0.store.stats().await?)
    }

    /// Now, in Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        now_ms()
    }
}

/// Now, in Unix milliseconds.
#[must_use]
pub fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}
