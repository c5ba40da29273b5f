//! A run as the operator shows it.

use cadre_protocol::event::EventMetrics;
use cadre_protocol::feed::{PendingApproval, RunReport};
use cadre_protocol::run::RunMetrics;
use cadre_store::approvals::ApprovalRow;
use cadre_store::rows::{Origin, RunRow};
use serde_json::Value;

/// The report of a run that a Run object made; none for other runs.
#[must_use]
pub fn report(
    run: &RunRow,
    waiting_on: Option<String>,
    waiting_for: Option<String>,
    approvals: &[ApprovalRow],
) -> Option<RunReport> {
    let Origin::RunObject { uid, name } = &run.origin else { return None };
    let (output, output_truncated) = match &run.content {
        Some(content) => shorten(text(content)),
        None => (None, false),
    };
    Some(RunReport {
        uid: uid.clone(),
        namespace: run.component.namespace.clone(),
        name: name.clone(),
        run_id: run.run_id.to_string(),
        session_id: run.session_id.to_string(),
        status: run.status,
        attempts: run.attempt,
        started_at_ms: run.started_at_ms,
        finished_at_ms: run.finished_at_ms,
        metrics: (run.metrics.model_calls > 0).then(|| metrics(&run.metrics)),
        output,
        output_truncated,
        error: run.failure.clone(),
        waiting_on,
        waiting_for,
        pending_approvals: approvals.iter().filter(|row| row.is_open).map(pending).collect(),
    })
}

fn pending(row: &ApprovalRow) -> PendingApproval {
    let tool = &row.requirement.tool_execution;
    PendingApproval { id: tool.tool_call_id.clone(), tool: tool.tool_name.clone() }
}

fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Cuts at a character, at most [`RunReport::MAX_OUTPUT_BYTES`].
fn shorten(mut text: String) -> (Option<String>, bool) {
    if text.len() <= RunReport::MAX_OUTPUT_BYTES {
        return (Some(text), false);
    }
    let end = (0..=RunReport::MAX_OUTPUT_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.truncate(end);
    (Some(text), true)
}

#[expect(clippy::cast_precision_loss, reason = "dollars and seconds for people; 2^53 of the small units is plenty")]
fn metrics(sums: &RunMetrics) -> EventMetrics {
    let seconds = |ms: u64| ms as f64 / 1000.0;
    EventMetrics {
        input_tokens: sums.usage.input_tokens,
        output_tokens: sums.usage.output_tokens,
        total_tokens: sums.usage.input_tokens.saturating_add(sums.usage.output_tokens),
        cache_read_tokens: sums.usage.cache_read_tokens,
        cache_write_tokens: sums.usage.cache_write_tokens,
        reasoning_tokens: sums.usage.reasoning_tokens,
        cost: sums.cost_nano_usd.map(|nano| nano as f64 / 1e9),
        time_to_first_token: sums.time_to_first_token_ms.map(seconds),
        duration: sums.duration_ms.map(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_at_a_character() {
        let long = "é".repeat(RunReport::MAX_OUTPUT_BYTES);
        let (cut, truncated) = shorten(long);
        assert!(truncated);
        assert_eq!(cut.unwrap().len(), RunReport::MAX_OUTPUT_BYTES);
        assert_eq!(shorten("x".into()), (Some("x".into()), false));
    }
}
