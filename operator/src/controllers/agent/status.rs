//! An Agent's status.

use cadre_crds::agent::{AgentStatus, LastRun};
use cadre_crds::common::conditions::{MODEL_RESOLVED, READY, SUSPENDED, Truth};
use cadre_crds::common::reasons::Reason;
use cadre_crds::model::Model;
use cadre_crds::resolve::Unresolved;
use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::feed::AgentReport;
use cadre_protocol::run::RunStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::conditions::{Conditions, Verdict, reason, truth};

/// What an Agent's status is made from.
#[derive(Debug)]
pub struct View<'a> {
    /// The resolved agent, or why there is none.
    pub snapshot: &'a Result<AgentSnapshot, Unresolved>,
    /// The Model, if there is one.
    pub model: Option<&'a Model>,
    /// Its name.
    pub model_name: &'a str,
    /// How busy the agent is.
    pub report: Option<&'a AgentReport>,
}

/// The status that follows.
#[must_use]
pub fn observe(old: &AgentStatus, view: &View<'_>, generation: i64, now: &Time) -> AgentStatus {
    let (resolved, reason, message) = model(view);
    let conditions = Conditions::of(&old.conditions, generation, now).set(MODEL_RESOLVED, resolved, reason, &message);
    let suspended = matches!(view.snapshot, Err(Unresolved::Suspended));
    let conditions = if suspended {
        conditions.set(SUSPENDED, true, Reason::Suspended, "new runs are refused")
    } else {
        conditions.without(SUSPENDED)
    };
    let conditions = match view.snapshot {
        Err(problem @ Unresolved::Invalid(_)) => {
            conditions.verdict(Verdict::Stalled, Reason::InvalidSpec, &problem.message())
        }
        Err(problem @ Unresolved::Suspended) => {
            conditions.verdict(Verdict::Resting, Reason::Suspended, &problem.message())
        }
        Err(problem @ Unresolved::PriceUnknown(_)) => {
            conditions.verdict(Verdict::Waiting(Truth::False), Reason::PriceUnknown, &problem.message())
        }
        Err(Unresolved::ModelNotFound(_)) => conditions.verdict(Verdict::Waiting(Truth::False), reason, &message),
        Ok(_) if resolved == Truth::True => conditions.verdict(Verdict::Ready, Reason::Ready, "the agent can run"),
        Ok(_) => conditions.verdict(Verdict::Waiting(resolved), reason, &message),
    };
    let report = view.report;
    AgentStatus {
        observed_generation: Some(generation),
        conditions: conditions.finish(),
        revision: view.snapshot.as_ref().ok().map(|snapshot| snapshot.revision().to_string()),
        active_runs: report.map(|report| report.active_runs).or(old.active_runs),
        queued_runs: report.map(|report| report.queued_runs).or(old.queued_runs),
        paused_runs: report.map(|report| report.paused_runs).or(old.paused_runs),
        last_run: report.and_then(last_run).or_else(|| old.last_run.clone()),
    }
}

fn last_run(report: &AgentReport) -> Option<LastRun> {
    let (id, status) = report.last_run.as_ref()?;
    let phase = match status {
        RunStatus::Completed => "Completed",
        RunStatus::Cancelled => "Cancelled",
        RunStatus::Error => "Failed",
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused | RunStatus::Regenerated => status.as_str(),
    };
    Some(LastRun { id: id.clone(), phase: phase.to_owned() })
}

fn model(view: &View<'_>) -> (Truth, Reason, String) {
    let name = view.model_name;
    let Some(model) = view.model else {
        return (Truth::False, Reason::ModelNotFound, Unresolved::ModelNotFound(name.to_owned()).message());
    };
    let status = model.status.clone().unwrap_or_default();
    let condition = status.conditions.iter().find(|condition| condition.type_ == READY);
    let seen = status.observed_generation >= model.metadata.generation;
    match condition {
        Some(ready) if seen && ready.status == "True" => {
            (Truth::True, Reason::Resolved, format!("Model {name:?} is ready"))
        }
        Some(ready) if seen && ready.status == "False" => {
            (Truth::False, Reason::ModelNotReady, format!("Model {name:?} is not ready: {}", ready.message))
        }
        Some(_) | None => (Truth::Unknown, Reason::ModelNotReady, format!("Model {name:?} is not ready yet")),
    }
}

/// Whether people or programs wait for the change: numbers may come later.
#[must_use]
pub fn differ_in_more_than_numbers(old: &AgentStatus, new: &AgentStatus) -> bool {
    let words = |status: &AgentStatus| {
        let kinds = status.conditions.iter().map(|condition| condition.type_.clone()).collect::<Vec<_>>();
        let values: Vec<_> = kinds
            .iter()
            .map(|kind| (truth(&status.conditions, kind).to_owned(), reason(&status.conditions, kind).to_owned()))
            .collect();
        (status.observed_generation, status.revision.clone(), kinds, values)
    };
    words(old) != words(new)
}

#[cfg(test)]
mod tests {
    use cadre_crds::agent::AgentSpec;
    use cadre_crds::common::conditions::{RECONCILING, STALLED};
    use cadre_crds::resolve::resolve;
    use cadre_protocol::ids::ComponentRef;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    fn model(ready: &str, observed: i64) -> Model {
        serde_json::from_value(json!({
            "apiVersion": "cadre.dev/v1alpha1", "kind": "Model", "metadata": {"name": "m", "generation": 2},
            "spec": {"provider": "Scripted", "model": "echo"},
            "status": {"observedGeneration": observed, "conditions": [{
                "type": "Ready", "status": ready, "reason": "x", "message": "why", "lastTransitionTime": "2026-01-01T00:00:00Z"
            }]},
        }))
        .unwrap()
    }

    fn agent(more: Value) -> AgentSpec {
        let mut spec = json!({"modelRef": {"name": "m"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn an_agent_is_as_ready_as_its_model() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let shell = json!({"type": "Builtin", "builtin": {"name": "Shell"}});
        let twice = json!({"tools": [shell.clone(), shell]});
        let mut old = AgentStatus::default();
        for (more, model, ready, why, reconciling, stalled) in [
            (json!({}), None, "False", "ModelNotFound", "True", ""),
            (json!({}), Some(model("Unknown", 2)), "Unknown", "ModelNotReady", "True", ""),
            (json!({}), Some(model("False", 2)), "False", "ModelNotReady", "True", ""),
            (json!({}), Some(model("True", 1)), "Unknown", "ModelNotReady", "True", ""),
            (json!({}), Some(model("True", 2)), "True", "Ready", "", ""),
            (json!({"suspend": true}), Some(model("True", 2)), "False", "Suspended", "", ""),
            (json!({"limits": {"maxBudgetUsd": "1"}}), Some(model("True", 2)), "False", "PriceUnknown", "True", ""),
            (twice, Some(model("True", 2)), "False", "InvalidSpec", "", "True"),
        ] {
            let spec = agent(more);
            let snapshot =
                resolve(&ComponentRef::agent("team", "a"), "default", &spec, model.as_ref().map(|model| &model.spec));
            let view = View { snapshot: &snapshot, model: model.as_ref(), model_name: "m", report: None };
            old = observe(&old, &view, 1, &now);
            let seen = [READY, RECONCILING, STALLED].map(|kind| truth(&old.conditions, kind));
            assert_eq!(seen, [ready, reconciling, stalled], "{why}");
            assert_eq!(reason(&old.conditions, READY), why);
            assert_eq!(truth(&old.conditions, SUSPENDED) == "True", why == "Suspended");
            assert_eq!(old.revision.is_some(), snapshot.is_ok());
        }
    }

    #[test]
    fn load_is_shown_but_never_urgent() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let (spec, model) = (agent(json!({})), model("True", 2));
        let snapshot = resolve(&ComponentRef::agent("team", "a"), "default", &spec, Some(&model.spec));
        let view = |report| View { snapshot: &snapshot, model: Some(&model), model_name: "m", report };
        let quiet = observe(&AgentStatus::default(), &view(None), 1, &now);
        let report = AgentReport {
            namespace: "team".into(),
            name: "a".into(),
            active_runs: 2,
            queued_runs: 1,
            paused_runs: 0,
            last_run: Some(("r1".into(), RunStatus::Error)),
        };
        let busy = observe(&quiet, &view(Some(&report)), 1, &now);
        assert_eq!((busy.active_runs, busy.queued_runs), (Some(2), Some(1)));
        assert_eq!(busy.last_run, Some(LastRun { id: "r1".into(), phase: "Failed".into() }));
        assert!(!differ_in_more_than_numbers(&quiet, &busy));
        assert!(differ_in_more_than_numbers(&AgentStatus::default(), &quiet));
        assert_eq!(observe(&busy, &view(None), 1, &now), busy, "without a report the last numbers stay");
    }
}
