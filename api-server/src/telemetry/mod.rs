//! Traces of runs, sent by OTLP when an endpoint is configured.
//!
//! A run's trace is made from the record when the run ends, by the replica that sees the end: it is whole however many
//! workers and replicas the run has had. Ids derive from the run's, so that everybody would make the same ones; a caller's
//! `traceparent` gives the trace and the parent, and an unsampled one makes no trace. Spans
//! carry ids, names, counts and categories, never content (security rule 22). Traces may be lost with a process or when
//! the collector falls behind; runs never wait for them.

mod export;
mod parent;
mod spans;

use cadre_store::rows::{ModelCallFact, RunDetail};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use export::InvalidEndpoint;
pub use parent::TraceParent;

/// Runs that may wait for the collector.
const WAITING_RUNS: usize = 4096;

/// What a trace is made from.
#[derive(Debug)]
pub struct EndedRun {
    /// The run, its messages and tool calls.
    pub detail: RunDetail,
    /// Its model calls.
    pub model_calls: Vec<ModelCallFact>,
    /// The caller's span.
    pub parent: Option<TraceParent>,
}

/// Where traces go. Clones share it; the default goes nowhere.
#[derive(Debug, Clone, Default)]
pub struct Traces(Option<mpsc::Sender<EndedRun>>);

impl Traces {
    /// Sends to an OTLP collector by HTTP (protobuf), until `stop` fires and what waits is sent. `endpoint` is the base, as
    /// in `OTEL_EXPORTER_OTLP_ENDPOINT`: `/v1/traces` is added.
    ///
    /// # Errors
    /// When the endpoint is no http URL.
    pub fn to(endpoint: &str, tasks: &TaskTracker, stop: CancellationToken) -> Result<Self, InvalidEndpoint> {
        let exporter = export::exporter(endpoint)?;
        let (sender, runs) = mpsc::channel(WAITING_RUNS);
        tasks.spawn(export::run(exporter, runs, stop));
        Ok(Self(Some(sender)))
    }

    /// Whether anybody wants traces.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Hands over a run that has ended. Never waits: what doesn't fit is dropped.
    pub fn ended(&self, run: EndedRun) {
        let Some(sender) = &self.0 else { return };
        if sender.try_send(run).is_err() {
            tracing::warn!("the trace of a run is dropped: the collector is behind");
        }
    }
}
