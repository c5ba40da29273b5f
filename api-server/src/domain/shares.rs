//! What one namespace may take of what all share, and what a run that waits waits for.

use std::sync::atomic::Ordering;

use cadre_protocol::run::RunStatus;
use cadre_store::StoreError;
use cadre_store::rows::{RunRow, Waiting};
use cadre_store::shares::{Shares, SlotLimits};

use super::{DomainError, Service};
use crate::placement::Wanted;

/// Most that one namespace may take. 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceShares {
    /// Runs that wait.
    pub max_queue_depth: u32,
    /// Sessions that run at once over all replicas. Without it, slots still go to the namespace that has the fewest.
    pub max_running: u32,
    /// Open streams and requests that wait for a run's end, of each replica.
    pub max_streams: u32,
    /// Bytes of files, over all sessions.
    pub max_file_bytes: u64,
    /// Sandboxes of sessions at once.
    pub max_sandboxes: u32,
}

impl Default for NamespaceShares {
    fn default() -> Self {
        Self { max_queue_depth: 1_000, max_running: 0, max_streams: 2_000, max_file_bytes: 5 << 30, max_sandboxes: 500 }
    }
}

impl NamespaceShares {
    /// The part that the record keeps to.
    #[must_use]
    pub fn of_record(&self) -> Shares {
        Shares { max_queue_depth: self.max_queue_depth, max_running: self.max_running }
    }
}

impl Service {
    /// Most sessions that run at once.
    pub(crate) fn slot_limits(&self) -> SlotLimits {
        SlotLimits { of_all: self.0.limits.max_running, of_namespace: self.0.limits.shares.max_running }
    }

    /// Whether any run needs a slot, whatever its agent.
    pub(crate) fn limits_slots(&self) -> bool {
        self.slot_limits() != SlotLimits::default()
    }

    /// What a run that has not started waits for, in words, when that is not a run of its own session.
    ///
    /// # Errors
    /// The record's.
    pub async fn waits_for(&self, run: &RunRow) -> Result<Option<String>, DomainError> {
        if run.status != RunStatus::Pending {
            return Ok(None);
        }
        if self.0.store.needs_slot(&run.run_id).await? {
            let limits = self.slot_limits();
            return Ok(Some(match (limits.of_namespace, limits.of_all) {
                (0, 0) => "a slot: as many sessions of the agent run as it may have at once".to_owned(),
                (0, _) => "a slot: as many sessions run as may at once".to_owned(),
                _ => format!("a slot: as many sessions of namespace {} run as may at once", run.component.namespace),
            }));
        }
        let wanted = Wanted { session_id: run.session_id.clone(), component: run.component.clone() };
        Ok(self.0.placement.waits_for(&wanted))
    }

    /// The namespace has all the workers that it may have. One that has nothing to do makes room; until then the run
    /// waits.
    pub(crate) async fn hold_up(&self, waiting: &Waiting, reason: &str, again: bool) {
        self.0.held_up.store(true, Ordering::Release);
        if !again {
            tracing::info!(run_id = %waiting.run_id, session_id = %waiting.session_id, reason, "run waits for a place");
            self.tell_run(&waiting.run_id).await;
        }
        let idle = self.board().idlest_in(&waiting.component.namespace);
        if let Some(idle) = idle {
            let service = self.clone();
            self.spawn(async move { service.retire(&idle.session_id, &idle).await });
        }
    }

    /// A worker has gone: whoever waits for its place is looked at.
    pub(crate) fn place_is_free(&self) {
        if self.0.held_up.swap(false, Ordering::AcqRel) {
            self.0.sweep_now.notify_one();
        }
    }

    /// Gives free slots to runs that wait for one, and places these. `component` is whose slot may have become free.
    pub(crate) async fn grant(&self, component: Option<&cadre_protocol::ids::ComponentRef>) -> Result<(), StoreError> {
        for waiting in self.0.store.grant(component, self.slot_limits()).await? {
            self.place_soon(waiting);
        }
        Ok(())
    }
}
