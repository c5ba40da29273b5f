//! The trace of a run that has ended, made from the record.

use cadre_protocol::ids::RunId;

use super::{DomainError, Service};
use crate::telemetry::{EndedRun, TraceParent};

impl Service {
    /// Hands the trace of an ended run to the collector, in the background and only if one is configured.
    pub(crate) fn trace(&self, run_id: &RunId) {
        if !self.0.traces.wanted() {
            return;
        }
        let (service, run_id) = (self.clone(), run_id.clone());
        self.spawn(async move {
            match service.ended_run(&run_id).await {
                Ok(Some(ended)) => service.0.traces.ended(&ended),
                Ok(None) => {}
                Err(error) => tracing::warn!(run_id = %run_id, error = %error, "the trace of a run can't be made"),
            }
        });
    }

    async fn ended_run(&self, run_id: &RunId) -> Result<Option<EndedRun>, DomainError> {
        let Some(detail) = self.0.store.detail(run_id, None).await? else { return Ok(None) };
        let model_calls = self.0.store.model_calls(run_id).await?;
        let parent = self.0.store.trace_parent(run_id).await?;
        let parent = parent.as_deref().and_then(TraceParent::parse);
        Ok(Some(EndedRun { detail, model_calls, parent }))
    }
}
