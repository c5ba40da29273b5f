//! What the board is made of: workers, seats of sessions, and the answers that it gives. Pure.

use std::sync::Arc;

use cadre_protocol::ids::{ComponentRef, RunId, SessionId, WorkerId};
use cadre_protocol::worker::ServerFrame;
use cadre_store::rows::{Lease, Waiting};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use super::scope::{RunScope, Writer};
use crate::placement::Serves;

/// A live connection. Few frames go this way: assignments, cancels, fences.
#[derive(Debug, Clone)]
pub struct Link {
    /// Number of the connection.
    pub id: u64,
    /// Its queue.
    pub control: UnboundedSender<ServerFrame>,
    /// Ends it: the worker then dials in again.
    pub close: CancellationToken,
}

/// A worker process of this replica.
#[derive(Debug)]
pub(super) struct WorkerEntry {
    pub(super) registration: String,
    pub(super) serves: Serves,
    pub(super) link: Option<Link>,
    /// The record says that it is connected here. Only then it gets runs.
    pub(super) registered: bool,
    pub(super) draining: bool,
}

/// Where a session stands.
#[derive(Debug)]
pub(super) enum Stage {
    Idle,
    Wanted(Waiting),
    Starting(RunId),
    Running(Arc<RunScope>),
}

/// A session on the board.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) component: ComponentRef,
    pub(super) lease: Option<Lease>,
    pub(super) stage: Stage,
    /// Rises with each change of stage: timers recognize by it that they are late.
    pub(super) turn: u64,
}

/// What is to be done for a run that waits.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// It is being taken care of.
    Nothing,
    /// This worker is there.
    Start(Writer, Option<Lease>),
    /// A worker has to be asked for.
    Ensure,
}

/// What a lost worker leaves.
#[derive(Debug)]
pub struct Orphan {
    /// Its session.
    pub session_id: SessionId,
    /// The run that needs another worker.
    pub waiting: Option<Waiting>,
}

/// A session whose worker has nothing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleSeat {
    /// Session.
    pub session_id: SessionId,
    /// Turn of the seat.
    pub turn: u64,
}

/// A session that was taken off the board, with its worker.
#[derive(Debug)]
pub struct Retired {
    /// Component of the session.
    pub component: ComponentRef,
    /// The worker, where it serves this session alone.
    pub(super) worker_id: Option<WorkerId>,
}

/// Whether a process has this lease.
pub(super) fn is_of(lease: &Lease, writer: &Writer) -> bool {
    lease.worker_id == writer.worker_id && lease.registration == writer.registration
}
