//! A Run's status. In kstatus's terms a run that is under way is InProgress (`Reconciling`), a completed one Current
//! (`Ready`), and one that failed or was cancelled Failed (`Stalled`): it is immutable, so only a new object helps.

use std::sync::Arc;
use std::time::Duration;

use cadre_crds::common::conditions::{COMPLETE, FAILED, FINISHED, PAUSED, READY, Truth};
use cadre_crds::common::reasons::Reason;
use cadre_crds::run::{PendingApproval, Run, RunError, RunPhase, RunStatus, RunUsage};
use cadre_protocol::event::EventMetrics;
use cadre_protocol::feed::{self, RunReport};
use cadre_protocol::run::{RunFailure, RunStatus as ApiStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::conditions::{Conditions, Verdict, reason};

/// What is known of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum View {
    /// The API server has it.
    Reported(Arc<RunReport>),
    /// The API server has it and has yet to tell.
    Unchanged,
    /// The API server had it and has it no more.
    Forgotten,
    /// There is no such Agent.
    AgentMissing,
    /// The API server can't take it now.
    Waiting(String),
    /// The API server refused it for good.
    Rejected(String),
    /// It was cancelled before it was submitted.
    NeverRan,
}

/// It may have done its work, so it is not submitted again.
const FORGOTTEN: &str = "the API server has this run no more: it was removed before its end was seen here";

/// Where a run stands in its life: what the conditions are made from.
struct Stage {
    phase: RunPhase,
    verdict: Verdict,
    reason: Reason,
    message: String,
}

/// The status that follows.
#[must_use]
pub fn observe(old: &RunStatus, view: &View, generation: i64, now: &Time) -> RunStatus {
    let mut status = old.clone();
    status.observed_generation = Some(generation);
    let stage = match view {
        View::Unchanged => return status,
        View::Reported(report) => {
            mirror(&mut status, report);
            reported(report)
        }
        View::AgentMissing => waiting(Reason::AgentNotFound, "the Agent does not exist: the run starts when it does"),
        View::Waiting(why) => waiting(Reason::ApiServerUnavailable, why),
        View::Rejected(why) => {
            status.error = Some(RunError { kind: "rejected".into(), message: why.clone() });
            ended(RunPhase::Failed, Reason::Rejected, why)
        }
        View::Forgotten => {
            status.error = Some(RunError { kind: "forgotten".into(), message: FORGOTTEN.into() });
            ended(RunPhase::Failed, Reason::Failed, FORGOTTEN)
        }
        View::NeverRan => ended(RunPhase::Cancelled, Reason::Cancelled, "cancelled before it was submitted"),
    };
    status.phase = Some(stage.phase);
    if is_end(stage.phase) && status.completion_time.is_none() {
        status.completion_time = Some(now.clone());
    }
    let Stage { phase, verdict, reason, message } = &stage;
    let complete = *phase == RunPhase::Completed;
    status.conditions = Conditions::of(&old.conditions, generation, now)
        .set(COMPLETE, complete, *reason, message)
        .set(FAILED, is_end(*phase) && !complete, *reason, message)
        .set(PAUSED, *phase == RunPhase::Paused, *reason, message)
        .set(FINISHED, is_end(*phase), *reason, message)
        .verdict(*verdict, *reason, message)
        .finish();
    status
}

fn waiting(reason: Reason, message: &str) -> Stage {
    under_way(RunPhase::Pending, reason, message)
}

fn under_way(phase: RunPhase, reason: Reason, message: &str) -> Stage {
    Stage { phase, verdict: Verdict::Waiting(Truth::Unknown), reason, message: message.to_owned() }
}

fn ended(phase: RunPhase, reason: Reason, message: &str) -> Stage {
    Stage { phase, verdict: Verdict::Stalled, reason, message: message.to_owned() }
}

fn reported(report: &RunReport) -> Stage {
    match report.status {
        ApiStatus::Pending => {
            let message = match (&report.waiting_on, &report.waiting_for) {
                (Some(run), _) => format!("waits for run {run} of the same session"),
                (None, Some(what)) => format!("waits for {what}"),
                (None, None) => "waits for a worker".to_owned(),
            };
            under_way(RunPhase::Pending, Reason::Pending, &message)
        }
        ApiStatus::Running => under_way(RunPhase::Running, Reason::Running, "the agent is at work"),
        ApiStatus::Paused => under_way(RunPhase::Paused, Reason::Paused, &pause(report)),
        ApiStatus::Completed | ApiStatus::Regenerated => Stage {
            phase: RunPhase::Completed,
            verdict: Verdict::Ready,
            reason: Reason::Completed,
            message: "the run has completed".to_owned(),
        },
        ApiStatus::Cancelled => ended(RunPhase::Cancelled, Reason::Cancelled, "the run was cancelled"),
        ApiStatus::Error => ended(RunPhase::Failed, Reason::Failed, &failure(report.error.as_ref())),
    }
}

/// The kind of a failure. Its words may be a provider's: they are in `status.error`, and in no condition or Event, which more
/// people may read (security rules 16 and 22).
fn failure(error: Option<&RunFailure>) -> String {
    let Some(RunFailure { error_type, error_id, .. }) = error else { return "the run has failed".to_owned() };
    match error_id {
        Some(id) => format!("the run has failed: {error_type}, {id}; status.error says more"),
        None => format!("the run has failed: {error_type}; status.error says more"),
    }
}

/// What a paused run waits for, and the command that shows it.
fn pause(report: &RunReport) -> String {
    let tools: Vec<&str> = report.pending_approvals.iter().map(|pending| pending.tool.as_str()).collect();
    let RunReport { name, namespace, .. } = report;
    let look = format!("kubectl cadre logs run/{name} -n {namespace}");
    format!("waits for a person: {}. {look} shows the calls and how to answer", tools.join(", "))
}

/// Copies what the API server tells.
fn mirror(status: &mut RunStatus, report: &RunReport) {
    let RunReport {
        uid: _,
        namespace: _,
        name: _,
        run_id,
        session_id,
        status: _,
        attempts,
        started_at_ms,
        finished_at_ms,
        metrics,
        output,
        output_truncated,
        error,
        waiting_on,
        waiting_for: _,
        pending_approvals,
    } = report;
    status.run_id = Some(run_id.clone());
    status.session_id = Some(session_id.clone());
    status.attempts = Some(*attempts);
    status.start_time = started_at_ms.and_then(time);
    status.completion_time = finished_at_ms.and_then(time);
    status.usage = metrics.as_ref().map(usage);
    status.output = output.clone();
    status.output_truncated = output_truncated.then_some(true);
    status.error =
        error.as_ref().map(|error| RunError { kind: error.error_type.clone(), message: error.message.clone() });
    status.waiting_on = waiting_on.clone();
    let pending = |it: &feed::PendingApproval| PendingApproval { id: it.id.clone(), tool: it.tool.clone() };
    status.pending_approvals = pending_approvals.iter().map(pending).collect();
}

/// Kubernetes keeps whole seconds.
fn time(unix_ms: u64) -> Option<Time> {
    Timestamp::from_second(i64::try_from(unix_ms / 1000).ok()?).ok().map(Time)
}

fn usage(metrics: &EventMetrics) -> RunUsage {
    RunUsage {
        input_tokens: metrics.input_tokens,
        output_tokens: metrics.output_tokens,
        total_tokens: metrics.total_tokens,
        cost_usd: metrics.cost.map(dollars),
    }
}

/// A decimal text without superfluous zeros; billionths are kept.
fn dollars(cost: f64) -> String {
    let text = format!("{cost:.9}");
    let text = text.trim_end_matches('0');
    text.strip_suffix('.').unwrap_or(text).to_owned()
}

fn is_end(phase: RunPhase) -> bool {
    match phase {
        RunPhase::Pending | RunPhase::Running | RunPhase::Paused => false,
        RunPhase::Completed | RunPhase::Failed | RunPhase::Cancelled => true,
    }
}

/// Whether the run has entered another stage: numbers may come later.
#[must_use]
pub fn differ_in_stage(old: &RunStatus, new: &RunStatus) -> bool {
    let stage =
        |status: &RunStatus| (status.phase, status.run_id.clone(), reason(&status.conditions, READY).to_owned());
    stage(old) != stage(new)
}

/// Time until the object of a run that has ended is deleted; none when it stays.
#[must_use]
pub fn time_left(run: &Run, status: &RunStatus, now: &Time) -> Option<Duration> {
    let ttl = i64::from(run.spec.ttl_seconds_after_finished?);
    let end = status.completion_time.as_ref()?.0.as_second();
    let left = end.saturating_add(ttl).saturating_sub(now.0.as_second());
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use cadre_crds::common::conditions::{RECONCILING, STALLED};
    use cadre_protocol::run::RunFailure;
    use serde_json::json;

    use super::*;
    use crate::conditions::truth;

    fn report(status: ApiStatus) -> RunReport {
        RunReport {
            uid: "u".into(),
            namespace: "team".into(),
            name: "r".into(),
            run_id: "run-1".into(),
            session_id: "s".into(),
            status,
            attempts: 1,
            started_at_ms: Some(1_000_999),
            finished_at_ms: status.is_terminal().then_some(2_000_000),
            metrics: Some(EventMetrics { total_tokens: 3, cost: Some(0.0015), ..EventMetrics::default() }),
            output: Some("done".into()),
            output_truncated: false,
            error: (status == ApiStatus::Error).then(|| RunFailure {
                error_type: "timeout".into(),
                error_id: None,
                message: "too slow".into(),
                retryable: false,
            }),
            waiting_on: None,
            waiting_for: None,
            pending_approvals: Vec::new(),
        }
    }

    #[test]
    fn a_run_is_in_progress_then_current_or_failed() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let reported = |status| View::Reported(Arc::new(report(status)));
        // Ready, Reconciling, Stalled, Complete, Failed, Finished.
        let open = ["Unknown", "True", "", "False", "False", "False"];
        let good = ["True", "", "", "True", "False", "True"];
        let bad = ["False", "", "True", "False", "True", "True"];
        for (view, phase, reason, expected) in [
            (View::AgentMissing, RunPhase::Pending, "AgentNotFound", open),
            (View::Waiting("full".into()), RunPhase::Pending, "ApiServerUnavailable", open),
            (reported(ApiStatus::Pending), RunPhase::Pending, "Pending", open),
            (reported(ApiStatus::Running), RunPhase::Running, "Running", open),
            (reported(ApiStatus::Paused), RunPhase::Paused, "Paused", open),
            (reported(ApiStatus::Completed), RunPhase::Completed, "Completed", good),
            (reported(ApiStatus::Error), RunPhase::Failed, "Failed", bad),
            (reported(ApiStatus::Cancelled), RunPhase::Cancelled, "Cancelled", bad),
            (View::Rejected("no".into()), RunPhase::Failed, "Rejected", bad),
            (View::Forgotten, RunPhase::Failed, "Failed", bad),
            (View::NeverRan, RunPhase::Cancelled, "Cancelled", bad),
        ] {
            let status = observe(&RunStatus::default(), &view, 4, &now);
            let kinds = [READY, RECONCILING, STALLED, COMPLETE, FAILED, FINISHED];
            assert_eq!(kinds.map(|kind| truth(&status.conditions, kind)), expected, "{view:?}");
            assert_eq!((status.phase, super::reason(&status.conditions, READY)), (Some(phase), reason));
            assert_eq!(status.completion_time.is_some(), is_end(phase));
            assert_eq!(truth(&status.conditions, PAUSED) == "True", phase == RunPhase::Paused);
        }
    }

    #[test]
    fn a_paused_run_says_what_it_waits_for_until_it_goes_on() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let call = feed::PendingApproval { id: "c".into(), tool: "shell".into() };
        let paused = RunReport { pending_approvals: vec![call], ..report(ApiStatus::Paused) };
        let status = observe(&RunStatus::default(), &View::Reported(Arc::new(paused)), 1, &now);
        assert_eq!(status.pending_approvals, [PendingApproval { id: "c".into(), tool: "shell".into() }]);
        let message = &status.conditions.iter().find(|it| it.type_ == PAUSED).unwrap().message;
        assert_eq!(
            message,
            "waits for a person: shell. kubectl cadre logs run/r -n team shows the calls and how to answer"
        );
        let status = observe(&status, &View::Reported(Arc::new(report(ApiStatus::Running))), 1, &now);
        assert!(status.pending_approvals.is_empty());
        assert_eq!(truth(&status.conditions, PAUSED), "False");
    }

    #[test]
    fn what_the_api_server_tells_is_shown() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let status = observe(&RunStatus::default(), &View::Reported(Arc::new(report(ApiStatus::Error))), 1, &now);
        assert_eq!(status.run_id.as_deref(), Some("run-1"));
        assert_eq!(status.start_time.as_ref().unwrap().0.as_second(), 1000);
        assert_eq!(status.usage.as_ref().unwrap().cost_usd.as_deref(), Some("0.0015"));
        assert_eq!(status.error.as_ref().unwrap().message, "too slow");
        let told: Vec<&str> = status.conditions.iter().map(|it| it.message.as_str()).collect();
        assert!(told.iter().all(|message| !message.contains("too slow")), "a condition tells the kind alone: {told:?}");
        assert!(told.contains(&"the run has failed: timeout; status.error says more"), "{told:?}");
        assert_eq!(observe(&status, &View::Unchanged, 1, &now), status);
    }

    #[test]
    fn dollars_are_plain_decimals() {
        for (cost, text) in [(0.0, "0"), (12.0, "12"), (0.000_000_001, "0.000000001"), (100.5, "100.5")] {
            assert_eq!(dollars(cost), text);
        }
    }

    #[test]
    fn objects_stay_unless_they_have_a_time_to_live() {
        let run = |ttl: serde_json::Value| -> Run {
            serde_json::from_value(json!({
                "apiVersion": "cadre.dev/v1alpha1", "kind": "Run", "metadata": {"name": "r"},
                "spec": {"target": {"name": "a"}, "input": {"type": "Text", "text": "x"}, "ttlSecondsAfterFinished": ttl},
            }))
            .unwrap()
        };
        let at = |second| Time(Timestamp::from_second(second).unwrap());
        let status = RunStatus { completion_time: Some(at(100)), ..RunStatus::default() };
        assert_eq!(time_left(&run(json!(null)), &status, &at(1000)), None);
        assert_eq!(time_left(&run(json!(60)), &status, &at(130)), Some(Duration::from_secs(30)));
        assert_eq!(time_left(&run(json!(60)), &status, &at(1000)), Some(Duration::ZERO));
    }
}
