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
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use export::InvalidEndpoint;
pub use parent::TraceParent;

/// Spans that may wait for the collector: some ten megabytes.
const WAITING_SPANS: usize = 16_384;

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
pub struct Traces(Option<mpsc::Sender<SpanData>>);

impl Traces {
    /// Sends to an OTLP collector by HTTP (protobuf), until `stop` fires and what waits is sent. `endpoint` is the base, as
    /// in `OTEL_EXPORTER_OTLP_ENDPOINT`: `/v1/traces` is added.
    ///
    /// # Errors
    /// When the endpoint is no http URL.
    pub fn to(endpoint: &str, tasks: &TaskTracker, stop: CancellationToken) -> Result<Self, InvalidEndpoint> {
        let exporter = export::exporter(endpoint)?;
        let (sender, spans) = mpsc::channel(WAITING_SPANS);
        tasks.spawn(export::run(exporter, spans, stop));
        Ok(Self(Some(sender)))
    }

    /// Whether anybody wants traces.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Hands over a run that has ended. Never waits: a trace that doesn't fit is dropped. What waits are spans, without the
    /// conversation that they are made from.
    pub fn ended(&self, run: &EndedRun) {
        self.send(spans::of_run(run));
    }

    fn send(&self, spans: Vec<SpanData>) {
        let Some(sender) = &self.0 else { return };
        match sender.try_reserve_many(spans.len()) {
            Ok(places) => places.zip(spans).for_each(|(place, span)| place.send(span)),
            Err(_) => tracing::warn!("the trace of a run is dropped: the collector is behind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_does_not_fit_is_dropped_whole() {
        let (sender, mut waiting) = mpsc::channel(3);
        let traces = Traces(Some(sender));
        traces.send(vec![spans::any(), spans::any()]);
        traces.send(vec![spans::any(), spans::any()]);
        assert!(waiting.try_recv().is_ok() && waiting.try_recv().is_ok());
        assert!(waiting.try_recv().is_err());
        traces.send(vec![spans::any(), spans::any(), spans::any()]);
        assert!(waiting.try_recv().is_ok(), "there is room again");
    }
}
