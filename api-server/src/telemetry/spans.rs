//! From the record of a run to its spans. Pure.
//!
//! Names and attributes follow OpenTelemetry's GenAI conventions: `invoke_agent`, `chat`, `execute_tool`.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use cadre_protocol::journal::ToolCallState;
use cadre_protocol::run::RunStatus;
use cadre_store::rows::{ModelCallFact, RunRow};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use sha2::{Digest, Sha256};

use super::EndedRun;

/// All spans of a run: the run, its wait in the queue, the engine's work, and below that model calls and tools. A run that went
/// on after its end is told again from there, under the same trace.
pub fn of_run(ended: &EndedRun) -> Vec<SpanData> {
    let run = &ended.detail.run;
    if ended.parent.is_some_and(|parent| !parent.sampled) {
        return Vec::new();
    }
    let id = ended.parent.map_or_else(|| trace_id(run.run_id.as_str()), |parent| parent.trace_id);
    let own = |part: &str| span_id(run.run_id.as_str(), &format!("{part} {}", run.attempt));
    let trace = Trace { id, root: own("run"), queue: own("queue"), engine: own("engine") };
    let mut spans = vec![trace.run(ended)];
    spans.extend(trace.queue(run));
    spans.extend(trace.engine(run));
    let is_told = |at_ms: u64| run.attempt > 1 && run.started_at_ms.is_some_and(|started| at_ms < started);
    let calls = ended.model_calls.iter().filter(|call| !is_told(call.at_ms));
    spans.extend(calls.map(|call| trace.model_call(run, call)));
    let ended_at = |call: &&ToolCallState| call.tool.metrics.map_or(0, |metrics| millis(metrics.end_time));
    let tools = ended.detail.tools.iter().filter(|call| !is_told(ended_at(call)));
    spans.extend(tools.filter_map(|call| trace.tool(run, call)));
    spans
}

struct Trace {
    id: TraceId,
    root: SpanId,
    queue: SpanId,
    engine: SpanId,
}

impl Trace {
    fn run(&self, ended: &EndedRun) -> SpanData {
        let (run, agent) = (&ended.detail.run, &ended.detail.agent);
        let metrics = &run.metrics;
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", "invoke_agent"),
            KeyValue::new("gen_ai.agent.id", agent.api_id.clone()),
            KeyValue::new("gen_ai.agent.name", run.component.name.clone()),
            KeyValue::new("gen_ai.conversation.id", run.session_id.to_string()),
            KeyValue::new("gen_ai.provider.name", agent.model.provider.clone()),
            KeyValue::new("gen_ai.request.model", agent.model.model_id.clone()),
            KeyValue::new("gen_ai.usage.input_tokens", int(metrics.usage.input_tokens)),
            KeyValue::new("gen_ai.usage.output_tokens", int(metrics.usage.output_tokens)),
            KeyValue::new("k8s.namespace.name", run.component.namespace.clone()),
            KeyValue::new("cadre.run.id", run.run_id.to_string()),
            KeyValue::new("cadre.run.status", run.status.as_str()),
            KeyValue::new("cadre.run.attempts", i64::from(run.attempt)),
        ];
        if let Some(failure) = &run.failure {
            attributes.push(KeyValue::new("error.type", failure.error_type.clone()));
        }
        let status = if run.status == RunStatus::Error { failed() } else { Status::Unset };
        let end = run.finished_at_ms.unwrap_or(run.created_at_ms);
        let name = format!("invoke_agent {}", run.component.name);
        let times = (run.created_at_ms, end);
        SpanData {
            parent_span_id: ended.parent.map_or(SpanId::INVALID, |parent| parent.span_id),
            parent_span_is_remote: ended.parent.is_some(),
            ..self.span(self.root, name, SpanKind::Server, times, attributes, status)
        }
    }

    fn queue(&self, run: &RunRow) -> Option<SpanData> {
        let started = run.started_at_ms?;
        let times = (run.created_at_ms.min(started), started);
        Some(self.span(self.queue, "queue".to_owned(), SpanKind::Internal, times, Vec::new(), Status::Unset))
    }

    /// From the run's start to its end: the worker's time, pauses among it.
    fn engine(&self, run: &RunRow) -> Option<SpanData> {
        let times = (run.started_at_ms?, run.finished_at_ms?);
        Some(self.span(self.engine, "engine".to_owned(), SpanKind::Internal, times, Vec::new(), Status::Unset))
    }

    /// A part of the engine's work.
    fn below_engine(&self, span: SpanData) -> SpanData {
        SpanData { parent_span_id: self.engine, ..span }
    }

    fn model_call(&self, run: &RunRow, call: &ModelCallFact) -> SpanData {
        let usage = call.usage;
        let attributes = vec![
            KeyValue::new("gen_ai.operation.name", "chat"),
            KeyValue::new("gen_ai.provider.name", call.provider.clone()),
            KeyValue::new("gen_ai.request.model", call.model_id.clone()),
            KeyValue::new("gen_ai.response.finish_reasons", call.finish.clone()),
            KeyValue::new("gen_ai.usage.input_tokens", int(usage.input_tokens)),
            KeyValue::new("gen_ai.usage.output_tokens", int(usage.output_tokens)),
            KeyValue::new("gen_ai.usage.cache_read.input_tokens", int(usage.cache_read_tokens)),
            KeyValue::new("cadre.model", call.model.clone()),
            KeyValue::new("cadre.time_to_first_token_ms", int(call.time_to_first_token_ms)),
        ];
        let id = span_id(run.run_id.as_str(), &format!("model {}", call.call_id));
        let times = (call.at_ms.saturating_sub(call.duration_ms), call.at_ms);
        let name = format!("chat {}", call.model_id);
        self.below_engine(self.span(id, name, SpanKind::Client, times, attributes, Status::Unset))
    }

    /// A tool that never ran, or whose outcome nobody knows, has no times and no span.
    fn tool(&self, run: &RunRow, call: &ToolCallState) -> Option<SpanData> {
        let tool = &call.tool;
        let metrics = tool.metrics?;
        if !run.lineage.is_empty() && millis(metrics.end_time) < run.created_at_ms {
            // It belongs to the run whose conversation this one has kept.
            return None;
        }
        let attributes = vec![
            KeyValue::new("gen_ai.operation.name", "execute_tool"),
            KeyValue::new("gen_ai.tool.name", tool.tool_name.clone()),
            KeyValue::new("gen_ai.tool.call.id", tool.tool_call_id.clone()),
        ];
        let status = if tool.tool_call_error == Some(true) { failed() } else { Status::Unset };
        let id = span_id(run.run_id.as_str(), &format!("tool {}", tool.tool_call_id));
        let name = format!("execute_tool {}", tool.tool_name);
        let times = (millis(metrics.start_time), millis(metrics.end_time));
        Some(self.below_engine(self.span(id, name, SpanKind::Internal, times, attributes, status)))
    }

    fn span(
        &self,
        id: SpanId,
        name: String,
        kind: SpanKind,
        (start_ms, end_ms): (u64, u64),
        attributes: Vec<KeyValue>,
        status: Status,
    ) -> SpanData {
        SpanData {
            span_context: SpanContext::new(self.id, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: self.root,
            parent_span_is_remote: false,
            span_kind: kind,
            name: Cow::Owned(name),
            start_time: time(start_ms),
            end_time: time(end_ms.max(start_ms)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: InstrumentationScope::builder("cadre").build(),
        }
    }
}

fn failed() -> Status {
    Status::Error { description: Cow::Borrowed("") }
}

fn digest(run_id: &str, part: &str) -> [u8; 32] {
    Sha256::new().chain_update(run_id).chain_update([0]).chain_update(part).finalize().into()
}

fn trace_id(run_id: &str) -> TraceId {
    digest(run_id, "trace").first_chunk::<16>().map_or(TraceId::INVALID, |bytes| TraceId::from_bytes(*bytes))
}

fn span_id(run_id: &str, part: &str) -> SpanId {
    digest(run_id, part).first_chunk::<8>().map_or(SpanId::INVALID, |bytes| SpanId::from_bytes(*bytes))
}

fn time(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "Unix times in milliseconds fit")]
fn millis(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e3) as u64
}

/// A span of nothing.
#[cfg(test)]
pub fn any() -> SpanData {
    let trace =
        Trace { id: trace_id("r"), root: span_id("r", "a"), queue: span_id("r", "b"), engine: span_id("r", "c") };
    trace.span(trace.root, "any".to_owned(), SpanKind::Internal, (0, 0), Vec::new(), Status::Unset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_derive_from_the_run_and_differ_by_part() {
        assert_eq!(trace_id("r"), trace_id("r"));
        assert_ne!(trace_id("r"), trace_id("s"));
        assert_ne!(span_id("r", "run"), span_id("r", "queue"));
        assert_ne!(trace_id("r"), TraceId::INVALID);
    }
}
