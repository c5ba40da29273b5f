//! What is counted. Labels have few values: statuses and categories, never names of runs, sessions or users.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cadre_protocol::model::{ModelError, ModelReply};
use cadre_protocol::run::RunStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// A static word.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Word {
    /// The word: a status, a category, a direction.
    pub kind: &'static str,
}

/// Counters; clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Counters>);

struct Counters {
    accepted: Histogram,
    ended: Family<Word, Counter>,
    replaced: Counter,
    model_calls: Family<Word, Counter>,
    model_tokens: Family<Word, Counter>,
    model_cost: Counter<f64, AtomicU64>,
    first_token: Histogram,
    workers: Gauge,
    running: Gauge,
    queued: Gauge<f64, AtomicU64>,
    refused_tokens: Family<Word, Counter<u64, AtomicU64>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self(Arc::new(Counters {
            // 0.25 ms to 4 s.
            accepted: Histogram::new(exponential_buckets(0.000_25, 2.0, 15)),
            ended: Family::default(),
            replaced: Counter::default(),
            model_calls: Family::default(),
            model_tokens: Family::default(),
            model_cost: Counter::default(),
            // 10 ms to 82 s.
            first_token: Histogram::new(exponential_buckets(0.01, 2.0, 14)),
            workers: Gauge::default(),
            running: Gauge::default(),
            queued: Gauge::default(),
            refused_tokens: Family::default(),
        }))
    }
}

impl Metrics {
    /// Makes the metrics visible.
    pub fn register(&self, registry: &mut Registry) {
        let Counters {
            accepted,
            ended,
            replaced,
            model_calls,
            model_tokens,
            model_cost,
            first_token,
            workers,
            running,
            queued,
            refused_tokens,
        } = &*self.0;
        let cadre = registry.sub_registry_with_prefix("cadre");
        cadre.register_with_unit("accept", "From a request to a durable run", Unit::Seconds, accepted.clone());
        cadre.register("runs_ended", "Runs that ended, by status", ended.clone());
        cadre.register("runs_replaced", "Runs that were given to another worker", replaced.clone());
        cadre.register("model_calls", "Model calls, by outcome", model_calls.clone());
        cadre.register("model_tokens", "Tokens of model calls, by direction", model_tokens.clone());
        cadre.register("model_cost_usd", "Cost of model calls that have a price, in US dollars", model_cost.clone());
        let first = "From the beginning of a model call to its first token";
        cadre.register_with_unit("model_first_token", first, Unit::Seconds, first_token.clone());
        cadre.register("workers", "Workers connected to this replica", workers.clone());
        cadre.register("sessions_running", "Sessions that run or are about to on this replica", running.clone());
        cadre.register("runs_waiting", "Runs that wait, over all replicas", queued.clone());
        cadre.register("worker_tokens_refused", "Tokens refused at the worker port", refused_tokens.clone());
    }

    /// A run was accepted.
    pub fn accepted(&self, took: Duration) {
        self.0.accepted.observe(took.as_secs_f64());
    }

    /// A run ended.
    pub fn ended(&self, status: RunStatus) {
        self.0.ended.get_or_create(&Word { kind: status.as_str() }).inc();
    }

    /// A run lost its worker.
    pub fn replaced(&self) {
        self.0.replaced.inc();
    }

    /// A model answered.
    pub fn model_reply(&self, reply: &ModelReply) {
        self.0.model_calls.get_or_create(&Word { kind: "ok" }).inc();
        self.0.model_tokens.get_or_create(&Word { kind: "input" }).inc_by(reply.usage.input_tokens);
        self.0.model_tokens.get_or_create(&Word { kind: "output" }).inc_by(reply.usage.output_tokens);
        self.0.first_token.observe(Duration::from_millis(reply.time_to_first_token_ms).as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "billionths of a dollar of one call stay far below 2^53")]
        if let Some(nano) = reply.cost_nano_usd {
            self.0.model_cost.inc_by(nano as f64 / 1e9);
        }
    }

    /// A model did not answer.
    pub fn model_error(&self, error: &ModelError) {
        self.0.model_calls.get_or_create(&Word { kind: error.category.as_str() }).inc();
    }

    /// A token was refused at the worker port.
    pub fn token_refused(&self, category: &'static str) {
        self.0.refused_tokens.get_or_create(&Word { kind: category }).inc();
    }

    /// What is read when somebody asks. How many wait is not a number while nobody knows.
    pub fn observe(&self, workers: usize, running: usize, waiting: Option<u64>) {
        self.0.workers.set(i64::try_from(workers).unwrap_or(i64::MAX));
        self.0.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.0.queued.set(waiting.map_or(f64::NAN, |count| f64::from(u32::try_from(count).unwrap_or(u32::MAX))));
    }
}
