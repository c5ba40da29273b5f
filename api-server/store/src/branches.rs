//! What going on from an ended run takes and gives: forks of runs, runs that are resumed, copies of sessions.

use std::sync::Arc;

use async_trait::async_trait;
use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::{ComponentRef, Revision, RunId, SessionId};
use cadre_protocol::message::Message;
use cadre_protocol::run::RunInput;

use crate::error::StoreError;
use crate::rows::{AcceptOutcome, IdempotencyKey, NewRun, Origin, Principal, RunRow};
use crate::shares::Shares;

/// How a new run begins with a part of one that has ended.
#[derive(Debug, Clone)]
pub struct Fork {
    /// That run. Of the same session and owner as the new one.
    pub source: RunId,
    /// How many of its messages are kept.
    pub keep: u64,
    /// How many messages it had when that was decided.
    pub of: u64,
    /// What the user adds.
    pub input: Option<Message>,
    /// Given when the source's last answer is given anew; true when the source leaves the session's history.
    pub regenerate: Option<bool>,
}

/// A run that failed and goes on under its own id.
#[derive(Debug, Clone)]
pub struct Resumption {
    /// The run.
    pub run_id: RunId,
    /// How many messages it had when that was decided.
    pub of: u64,
    /// What the user adds.
    pub input: Option<Message>,
    /// What is asked instead, of a run that failed before its first step.
    pub question: Option<RunInput>,
    /// The key of whoever asks for it.
    pub key: Option<KeyOf>,
    /// The snapshot that it goes on with.
    pub agent: Arc<AgentSnapshot>,
    /// Its content address.
    pub revision: Revision,
    /// Most waiting runs over all agents before this is refused; 0 means no limit.
    pub max_queue_depth: u32,
    /// What its namespace may take.
    pub shares: Shares,
    /// Whether it needs a slot, which it may not have needed before.
    pub is_limited: bool,
    /// Now, Unix milliseconds.
    pub at_ms: u64,
}

/// An idempotency key, and whose it is.
#[derive(Debug, Clone)]
pub struct KeyOf {
    /// The key.
    pub key: IdempotencyKey,
    /// Owner of the run.
    pub principal: Principal,
    /// The user that the caller names.
    pub user_id: Option<String>,
    /// Component.
    pub component: ComponentRef,
    /// The HTTP API, or a Run object: their keys never meet.
    pub origin: Origin,
}

/// What a key names.
#[derive(Debug, Clone)]
pub enum Keyed {
    /// A run of the same request.
    Run(Box<RunRow>),
    /// Another request.
    Conflict,
}

/// What came of a resumption.
#[derive(Debug, Clone)]
pub enum ResumeOutcome {
    /// It waits in its session's line again, behind all that is there.
    Resumed {
        /// The run, PENDING.
        run: Box<RunRow>,
        /// The run before it.
        waiting_on: Option<RunId>,
    },
    /// The idempotency key names this run.
    Replayed(Box<RunRow>),
    /// The idempotency key was used for another component or body.
    IdempotencyConflict,
    /// It is not as it was when that was decided.
    Changed,
    /// Too many runs wait.
    QueueFull,
    /// Too many runs of the namespace wait.
    NamespaceFull,
}

/// A copy of a session.
#[derive(Debug, Clone)]
pub struct SessionFork {
    /// The session.
    pub source: SessionId,
    /// Whose it must be; nobody's in particular when absent.
    pub principal: Option<Principal>,
    /// Id of the copy; must not be taken.
    pub session_id: SessionId,
    /// Beginning of the ids of its runs: random, at most 64 bytes.
    pub run_prefix: String,
    /// The user that the caller names; the source's when absent.
    pub user_id: Option<String>,
    /// Most bytes of files that its namespace may have; 0 means no limit.
    pub max_namespace_bytes: u64,
    /// Now, Unix milliseconds.
    pub at_ms: u64,
}

impl SessionFork {
    /// Most runs of a session that is copied.
    pub const MAX_RUNS: u64 = 10_000;
    /// Most bytes of a session that is copied: journals and files.
    pub const MAX_BYTES: u64 = 64 << 20;
}

/// What came of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionForkOutcome {
    /// It is there.
    Forked {
        /// Runs that were copied: those that have ended.
        runs: u64,
    },
    /// There is no such session, or no run of it has ended.
    Empty,
    /// It is larger than [`SessionFork::MAX_RUNS`] or [`SessionFork::MAX_BYTES`].
    TooLarge,
    /// The namespace has no room for its files.
    NamespaceFull,
}

/// Going on from runs that have ended. What has ended stays as it is, but for a run that failed and is resumed.
#[async_trait]
pub trait Branches: Send + Sync {
    /// Accepts a run whose conversation begins with messages of another one. It never starts in the same commit. None
    /// when the source has not ended, or is not as it was when the fork was decided.
    async fn fork(&self, run: NewRun, fork: Fork) -> Result<Option<AcceptOutcome>, StoreError>;

    /// What an idempotency key names, if it was used.
    async fn keyed(&self, of: KeyOf) -> Result<Option<Keyed>, StoreError>;

    /// Puts a run that ended with ERROR into its session's line again.
    async fn resume(&self, resumption: Resumption) -> Result<ResumeOutcome, StoreError>;

    /// Copies a session: its conversation, state and files, with new ids; events and measured model calls stay with the
    /// source. In one transaction.
    async fn fork_session(&self, fork: SessionFork) -> Result<SessionForkOutcome, StoreError>;
}
