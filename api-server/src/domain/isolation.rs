//! What engines say of their networks, for the operator: known to every replica through the record.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use cadre_protocol::feed::IsolationReport;
use cadre_protocol::ids::WorkerId;
use cadre_store::workers::Isolation;

use super::scope::Writer;
use super::{Change, DomainError, Service};

impl Service {
    /// Takes note of what an engine says of its network.
    pub fn report_isolation(&self, writer: &Writer, isolated: bool, detail: String) {
        let worker_id = &writer.worker_id;
        let Some(report) = report(worker_id, isolated, detail) else { return };
        if self.isolation_here().insert(worker_id.clone(), report.clone()).as_ref() != Some(&report) {
            // Nobody may be listening.
            let _ = self.0.changes.send(Change::Isolation(report));
            self.record_isolation(writer);
        }
    }

    /// Records it, once the record has the worker.
    pub(crate) fn record_isolation(&self, writer: &Writer) {
        let known = self.isolation_here().get(&writer.worker_id).cloned();
        let Some(known) = known.filter(|_| self.board().is_registered(writer)) else { return };
        let (service, writer) = (self.clone(), writer.clone());
        self.spawn(async move {
            let Writer { worker_id, registration } = writer;
            let report = Isolation { worker_id, isolated: known.isolated, detail: known.detail };
            if let Err(error) = service.0.store.report_isolation(&registration, &report).await {
                tracing::warn!(category = error.category(), "a report of a network can't be recorded now");
            }
        });
    }

    pub(crate) fn forget_isolation(&self, worker_id: &WorkerId) {
        self.isolation_here().remove(worker_id);
    }

    /// What engines of all replicas have said.
    ///
    /// # Errors
    /// The record's.
    pub async fn isolation(&self) -> Result<Vec<IsolationReport>, DomainError> {
        let recorded = self.0.store.isolations().await?;
        let mut reports: BTreeMap<WorkerId, IsolationReport> = recorded
            .into_iter()
            .filter_map(|Isolation { worker_id, isolated, detail }| {
                Some((worker_id.clone(), report(&worker_id, isolated, detail)?))
            })
            .collect();
        // What was said here is newer than what is recorded of it.
        reports.extend(self.isolation_here().clone());
        Ok(reports.into_values().collect())
    }

    fn isolation_here(&self) -> MutexGuard<'_, BTreeMap<WorkerId, IsolationReport>> {
        self.0.isolation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// None for workers without a Sandbox.
fn report(worker_id: &WorkerId, isolated: bool, detail: String) -> Option<IsolationReport> {
    let (namespace, sandbox) = worker_id.as_str().split_once('/')?;
    Some(IsolationReport { namespace: namespace.to_owned(), sandbox: sandbox.to_owned(), isolated, detail })
}
