//! Metrics in Prometheus's text format. Labels are kinds and results only.

use std::sync::Mutex;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Kind and result of a reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Result_ {
    kind: &'static str,
    result: &'static str,
}

/// A kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// Counts what the operator does.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    reconciles: Family<Result_, Counter>,
    durations: Family<Kind, Histogram, fn() -> Histogram>,
    status_writes: Family<Kind, Counter>,
    feed_connected: Gauge<i64, AtomicI64>,
    leader: Gauge<i64, AtomicI64>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// With everything at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("cadre_operator");
        let reconciles = Family::default();
        let durations: Family<Kind, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0005, 4.0, 9)));
        let status_writes = Family::default();
        let (feed_connected, leader) = (Gauge::default(), Gauge::default());
        registry.register("reconciles", "Reconciliations by kind and result", reconciles.clone());
        registry.register_with_unit("reconcile", "Time of a reconciliation", Unit::Seconds, durations.clone());
        registry.register("status_writes", "Statuses written, by kind", status_writes.clone());
        registry.register("feed_connected", "1 while the API server's feed is open", feed_connected.clone());
        registry.register("leader", "1 while this replica leads", leader.clone());
        Self { registry: Mutex::new(registry), reconciles, durations, status_writes, feed_connected, leader }
    }

    /// A reconciliation has ended.
    pub fn reconciled(&self, kind: &'static str, result: &'static str, time: Duration) {
        self.reconciles.get_or_create(&Result_ { kind, result }).inc();
        self.durations.get_or_create(&Kind { kind }).observe(time.as_secs_f64());
    }

    /// A status was written.
    pub fn status_written(&self, kind: &'static str) {
        self.status_writes.get_or_create(&Kind { kind }).inc();
    }

    /// The feed was opened or lost.
    pub fn feed(&self, connected: bool) {
        self.feed_connected.set(connected.into());
    }

    /// This replica leads, or no longer.
    pub fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Everything as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Writing into a String can't fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_in_the_text() {
        let metrics = Metrics::new();
        metrics.reconciled("Model", "ok", Duration::from_millis(2));
        metrics.leads(true);
        let text = metrics.text();
        assert!(text.contains(r#"cadre_operator_reconciles_total{kind="Model",result="ok"} 1"#), "{text}");
        assert!(text.contains("cadre_operator_leader 1"), "{text}");
    }
}
