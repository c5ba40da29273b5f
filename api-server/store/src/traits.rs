//! The traits that a database implements.

use async_trait::async_trait;
use cadre_protocol::event::EventContext;
use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId, WorkerId};
use cadre_protocol::journal::Batch;
use cadre_protocol::run::RunMetrics;

use crate::approvals::Approvals;
use crate::branches::Branches;
use crate::budgets::Budgets;
use crate::error::StoreError;
use crate::rows::jobs::{JobFilter, JobRow};
use crate::rows::sessions::{NewSession, RunPage, SessionEdit, SessionFilter, SessionRuns};
use crate::rows::upkeep::{DayUsage, Expiry, OldRun, RefreshState, UsageFilter};
use crate::rows::{
    AcceptOutcome, AgentLoad, AppendOutcome, BlobKey, BlobRange, CancelOutcome, Change, EndedRun, EventChunk, Lease,
    ModelCallFact, ModelCallRow, NewRun, Principal, QueueStats, RunDetail, RunFilter, RunRow, ServerEnd, SessionRow,
    StartedRun, Waiting,
};
use crate::shares::{BlobPlace, SlotLimits};
use crate::workers::Workers;

/// Acceptance, the line of a session, and the end of runs.
#[async_trait]
pub trait Runs: Send + Sync {
    /// Accepts a run. Committed when this returns.
    async fn accept(&self, run: NewRun) -> Result<AcceptOutcome, StoreError>;

    /// Starts the head of a session's line under a lease, or starts it again after its worker was lost.
    /// None when the lease is not the session's newest, the run is not the head, or it has ended.
    async fn start(&self, run_id: &RunId, lease: &Lease, at_ms: u64) -> Result<Option<StartedRun>, StoreError>;

    /// The same for a worker process without a lease: it gets the session's in the same commit. None also when another
    /// process is executing the run: of several that try at once, one gets it.
    async fn take(
        &self,
        run_id: &RunId,
        worker_id: &WorkerId,
        registration: &str,
        at_ms: u64,
    ) -> Result<Option<StartedRun>, StoreError>;

    /// Gives free slots to heads of lines that wait for one, and answers those: to the namespace that has the fewest, and
    /// in it to the oldest. `component` is whose slot may have become free; all are looked at when absent.
    async fn grant(&self, component: Option<&ComponentRef>, limits: SlotLimits) -> Result<Vec<Waiting>, StoreError>;

    /// Asks for a cancel. `principal` limits it to its own runs.
    async fn cancel(
        &self,
        run_id: &RunId,
        principal: Option<&Principal>,
        reason: &str,
        at_ms: u64,
    ) -> Result<CancelOutcome, StoreError>;

    /// Remembers a cancel of a run that is not there yet: accepted before `expires_at_ms` with this id as its caller's
    /// choice, it ends at once. `principal` limits it to that principal's runs. False when there is such a run.
    async fn cancel_later(
        &self,
        run_id: &RunId,
        principal: Option<&Principal>,
        expires_at_ms: u64,
    ) -> Result<bool, StoreError>;

    /// Ends an unfinished run by the server's decision: raises the session's epoch, so that its worker is fenced,
    /// appends the final event. None when it had ended.
    async fn end(&self, end: ServerEnd) -> Result<Option<(EndedRun, Option<EventChunk>)>, StoreError>;

    /// Heads of lines without a connected worker: PENDING ones that need no slot or have one, and RUNNING ones whose lease
    /// was released. Namespaces take turns, each with its oldest first.
    async fn waiting(&self, limit: u32) -> Result<Vec<Waiting>, StoreError>;

    /// The run, if it is one of those.
    async fn waiting_run(&self, run_id: &RunId) -> Result<Option<Waiting>, StoreError>;

    /// The one of a session.
    async fn waiting_in(&self, session_id: &SessionId) -> Result<Option<Waiting>, StoreError>;

    /// Whether the run waits for a slot.
    async fn needs_slot(&self, run_id: &RunId) -> Result<bool, StoreError>;

    /// The run.
    async fn run(&self, run_id: &RunId) -> Result<Option<RunRow>, StoreError>;

    /// The run, if it is this owner's.
    async fn run_of(&self, run_id: &RunId, owner: &Principal) -> Result<Option<RunRow>, StoreError>;

    /// The run that a Run object made.
    async fn run_of_object(&self, namespace: &str, uid: &str) -> Result<Option<RunRow>, StoreError>;

    /// The run with its messages and tool calls; where an owner is named, only if it is theirs.
    async fn detail(&self, run_id: &RunId, of: Option<&Principal>) -> Result<Option<RunDetail>, StoreError>;

    /// The span that the run's caller named.
    async fn trace_parent(&self, run_id: &RunId) -> Result<Option<String>, StoreError>;

    /// The run's model calls, oldest first.
    async fn model_calls(&self, run_id: &RunId) -> Result<Vec<ModelCallFact>, StoreError>;

    /// Runs, newest first, with the number of all that match.
    async fn list(&self, filter: RunFilter) -> Result<(Vec<RunRow>, u64), StoreError>;

    /// While PENDING: the run before it in its session's line.
    async fn waiting_on(&self, run_id: &RunId) -> Result<Option<RunId>, StoreError>;

    /// How many runs wait. Looks at no run that has ended.
    async fn waiting_count(&self) -> Result<u64, StoreError>;

    /// Counts of all runs there are.
    async fn stats(&self) -> Result<QueueStats, StoreError>;

    /// Load of every agent that has unfinished runs or has ever had one.
    async fn agent_loads(&self) -> Result<Vec<AgentLoad>, StoreError>;
}

/// What engines append, and what streams read.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends a batch if its epoch is the session's. A batch that is already there is acknowledged again.
    /// `context` renders its events.
    async fn append(&self, context: &EventContext, batch: &Batch) -> Result<AppendOutcome, StoreError>;

    /// The next events after `after` (exclusive; none = from the start), joined to one chunk, which may begin before:
    /// callers drop what they have. At most `max_bytes` beyond what was stored together with the first. None when there
    /// are no more.
    async fn events(
        &self,
        run_id: &RunId,
        after: Option<u64>,
        max_bytes: usize,
    ) -> Result<Option<EventChunk>, StoreError>;

    /// Records a model call. Returns once it is queued; it becomes durable with, or before, any later write of the run.
    async fn model_call(&self, call: ModelCallRow) -> Result<(), StoreError>;
}

/// Who may write a session's runs.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Gives the session to a worker process: the same epoch if it has it already, else a higher one.
    async fn acquire(
        &self,
        session_id: &SessionId,
        worker_id: &WorkerId,
        registration: &str,
        at_ms: u64,
    ) -> Result<Epoch, StoreError>;

    /// The session's lease.
    async fn lease(&self, session_id: &SessionId) -> Result<Option<Lease>, StoreError>;

    /// The worker is lost or gone: its runs wait for another one. The epoch stays spent. Nothing happens if the lease
    /// has moved on.
    async fn release(&self, session_id: &SessionId, lease: &Lease) -> Result<(), StoreError>;
}

/// Sessions.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// The session.
    async fn session(&self, session_id: &SessionId) -> Result<Option<SessionRow>, StoreError>;

    /// The session, if it is this owner's.
    async fn session_of(&self, session_id: &SessionId, owner: &Principal) -> Result<Option<SessionRow>, StoreError>;

    /// A page of the sessions that match, with the number of all.
    async fn sessions(&self, filter: SessionFilter) -> Result<(Vec<SessionRow>, u64), StoreError>;

    /// Makes a session without a run. None when the id is taken, by whomever.
    async fn create(&self, new: NewSession) -> Result<Option<SessionRow>, StoreError>;

    /// A page of a session's runs, newest first, bounded in rows and bytes.
    async fn session_runs(&self, of: SessionRuns) -> Result<RunPage, StoreError>;

    /// The newest of a session's runs with messages and tool calls, oldest first: at most [`SessionRuns::MAX_RUNS`], and not
    /// many more bytes than [`SessionRuns::MAX_BYTES`].
    async fn session_details(&self, of: SessionRuns) -> Result<Vec<RunDetail>, StoreError>;

    /// Tokens and cost of all runs of a session.
    async fn session_metrics(&self, session_id: &SessionId) -> Result<RunMetrics, StoreError>;

    /// Changes a session; where an owner is named, only if it is theirs. None when there is no such session.
    async fn edit(
        &self,
        session_id: &SessionId,
        of: Option<&Principal>,
        edit: SessionEdit,
        at_ms: u64,
    ) -> Result<Option<SessionRow>, StoreError>;

    /// Removes sessions with all that belongs to them; where an owner is named, only theirs. Sessions with an unfinished run
    /// stay; answers those removed.
    async fn delete(&self, session_ids: &[SessionId], of: Option<&Principal>) -> Result<Vec<SessionId>, StoreError>;
}

/// The queue, as its operators see it.
#[async_trait]
pub trait Jobs: Send + Sync {
    /// A page of the jobs that match, with the number of all.
    async fn jobs(&self, filter: JobFilter) -> Result<(Vec<JobRow>, u64), StoreError>;

    /// The job of a run.
    async fn job(&self, run_id: &RunId) -> Result<Option<JobRow>, StoreError>;
}

/// What is done from time to time: forgetting and counting.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Forgets idempotency keys and cancels whose time is over; answers how many.
    async fn expire(&self, expiry: Expiry) -> Result<u64, StoreError>;

    /// Runs that ended before a time (Unix milliseconds), oldest first.
    async fn old_runs(&self, before_ms: u64, limit: u32) -> Result<Vec<OldRun>, StoreError>;

    /// Removes a run, with all that hangs on it, if it ended before a time.
    async fn delete_run(&self, run: &OldRun, before_ms: u64) -> Result<bool, StoreError>;

    /// Sessions without a run that nothing has happened to since a time.
    async fn empty_sessions(&self, before_ms: u64, limit: u32) -> Result<Vec<SessionId>, StoreError>;

    /// Adds a bounded number of the next runs, sessions and model calls from before `to_ms` to the rows of their days.
    /// False when there is nothing more to count. Several replicas may count at once; each row counts once.
    async fn count_usage(&self, to_ms: u64, at_ms: u64) -> Result<bool, StoreError>;

    /// Days that match, oldest first, with what is not counted yet.
    async fn usage(&self, filter: UsageFilter, now_ms: u64) -> Result<Vec<DayUsage>, StoreError>;

    /// Notes that a refresh begins. False while another one that began after `stale_before_ms` has not ended.
    async fn begin_refresh(&self, at_ms: u64, stale_before_ms: u64) -> Result<bool, StoreError>;

    /// Notes that it has ended.
    async fn end_refresh(&self, at_ms: u64, error: Option<String>) -> Result<(), StoreError>;

    /// How the last one went.
    async fn refresh_state(&self) -> Result<RefreshState, StoreError>;
}

/// Bytes, addressed by session and digest.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// Stores bytes; the digest is computed here. Storing the same bytes again is nothing. None when the namespace has as
    /// many bytes as it may.
    async fn put(&self, place: &BlobPlace, bytes: Vec<u8>) -> Result<Option<BlobKey>, StoreError>;

    /// A part of a blob.
    async fn get(&self, key: &BlobKey, offset: u64, max_bytes: usize) -> Result<Option<BlobRange>, StoreError>;
}

/// State of the database itself.
#[async_trait]
pub trait Schema: Send + Sync {
    /// Whether the database answers and its schema is this program's.
    async fn check(&self) -> Result<(), StoreError>;

    /// Number of the newest migration of this program.
    fn newest_schema(&self) -> u32;

    /// Brings the schema up to date. Several replicas may call it at once.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// Writes what is queued and closes.
    async fn close(&self);
}

/// News from other replicas.
pub trait Changes: Send + Sync {
    /// What other replicas write and tell from now on, told after the commit. News may be lost with a connection: readers
    /// that hear nothing look at the record after a while. None when the database serves one process only.
    fn changes(&self) -> Option<tokio::sync::broadcast::Receiver<Change>>;

    /// Tells the other replicas. It may get lost on the way.
    fn tell(&self, change: Change);
}

/// All of it.
pub trait Store:
    Runs + Branches + Approvals + Budgets + Journal + Leases + Workers + Sessions + Jobs + Upkeep + Blobs + Changes + Schema
{
}
impl<
    T: Runs
        + Branches
        + Approvals
        + Budgets
        + Journal
        + Leases
        + Workers
        + Sessions
        + Jobs
        + Upkeep
        + Blobs
        + Changes
        + Schema,
> Store for T
{
}
