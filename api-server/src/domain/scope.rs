//! A run while a worker has it: what every frame about it needs, without asking the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::event::EventContext;
use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId, WorkerId};
use cadre_protocol::run::RunStatus;
use cadre_store::rows::{Origin, RunRow, Waiting};
use tokio_util::sync::CancellationToken;

use super::seen::Seen;

/// A worker process that writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Writer {
    /// Worker.
    pub worker_id: WorkerId,
    /// Its process.
    pub registration: String,
}

/// A run under an epoch.
#[derive(Debug)]
pub struct RunScope {
    /// Run.
    pub run_id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// Component.
    pub component: ComponentRef,
    /// The right to write.
    pub epoch: Epoch,
    /// What it runs with.
    pub agent: Arc<AgentSnapshot>,
    /// What its events carry.
    pub context: EventContext,
    /// Unix milliseconds of acceptance.
    pub created_at_ms: u64,
    /// Unix milliseconds after which the server ends it.
    pub deadline_ms: Option<u64>,
    /// Whether a Run object made it.
    pub of_object: bool,
    /// What its worker has written here.
    pub seen: Seen,
    /// Fires when the run has left its worker, whatever the reason.
    pub over: CancellationToken,
    cancelled: AtomicBool,
}

impl RunScope {
    /// The scope of a run that has started under `epoch`.
    #[must_use]
    pub fn new(run: &RunRow, agent: Arc<AgentSnapshot>, epoch: Epoch, seen: Seen) -> Self {
        Self {
            run_id: run.run_id.clone(),
            session_id: run.session_id.clone(),
            component: run.component.clone(),
            epoch,
            context: context(run, &agent),
            agent,
            created_at_ms: run.created_at_ms,
            deadline_ms: deadline_ms(run),
            of_object: matches!(run.origin, Origin::RunObject { .. }),
            seen,
            over: CancellationToken::new(),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Whether this is the first that is said of a cancel. The timer that it starts needs no second.
    #[must_use]
    pub fn is_cancelled_first(&self) -> bool {
        !self.cancelled.swap(true, Ordering::AcqRel)
    }

    /// The run as one that needs another worker.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        Waiting {
            run_id: self.run_id.clone(),
            session_id: self.session_id.clone(),
            component: self.component.clone(),
            status: RunStatus::Running,
            created_at_ms: self.created_at_ms,
        }
    }
}

/// What a run's events carry.
#[must_use]
pub fn context(run: &RunRow, agent: &AgentSnapshot) -> EventContext {
    EventContext {
        agent_id: agent.api_id.clone(),
        agent_name: agent.display_name.clone(),
        run_id: run.run_id.clone(),
        session_id: run.session_id.clone(),
        skip: agent.skip_events.clone(),
    }
}

/// When a started run times out, in Unix milliseconds. The time that it waited for a person does not count.
#[must_use]
pub fn deadline_ms(run: &RunRow) -> Option<u64> {
    let seconds = u64::from(run.timeout_seconds?);
    Some(run.started_at_ms?.saturating_add(run.paused_ms).saturating_add(seconds.saturating_mul(1000)))
}
