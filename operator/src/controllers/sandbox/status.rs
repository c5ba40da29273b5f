//! A Sandbox's status.

use std::sync::Arc;

use cadre_crds::common::conditions::{NETWORK_ISOLATED, SUSPENDED, Truth};
use cadre_crds::common::reasons::Reason;
use cadre_crds::sandbox::{Sandbox, SandboxPhase, SandboxStatus};
use cadre_protocol::feed::IsolationReport;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::decide::has_ended;
use super::evictions;
use crate::conditions::{Conditions, Verdict};

/// What is to be seen.
#[derive(Debug, Clone, PartialEq)]
pub enum View {
    /// No pod, on purpose.
    Suspended {
        /// Pods are still there.
        leaving: bool,
    },
    /// A pod.
    Pod(Arc<Pod>),
    /// The pod was there and is gone.
    Lost,
    /// No pod yet.
    Waiting {
        /// Why.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// No pod until the object is edited.
    Invalid(String),
}

/// Kubelet's word for a container that the kernel killed for its memory.
pub const OUT_OF_MEMORY: &str = "OOMKilled";

struct Stage {
    phase: SandboxPhase,
    verdict: Verdict,
    reason: Reason,
    message: String,
}

/// The status that follows.
#[must_use]
pub fn observe(
    sandbox: &Sandbox,
    old: &SandboxStatus,
    view: &View,
    report: Option<&IsolationReport>,
    now: &Time,
) -> SandboxStatus {
    let eviction = evictions::after(old.eviction.as_ref(), sandbox.spec.incarnation, view);
    let Stage { phase, verdict, reason, message } = match evictions::verdict(eviction.as_ref(), &sandbox.spec) {
        Some(message) if matches!(view, View::Pod(_) | View::Lost) => {
            new(SandboxPhase::Failed, Verdict::Stalled, Reason::EvictedAgain, &message)
        }
        _ => stage(view),
    };
    let generation = sandbox.metadata.generation.unwrap_or_default();
    let suspended = matches!(view, View::Suspended { .. });
    let suspended_reason = if suspended { Reason::Suspended } else { Reason::Progressing };
    let suspended_message = if suspended { "spec.operatingMode is Suspended" } else { "spec.operatingMode is Running" };
    let mut status = SandboxStatus {
        observed_generation: Some(generation),
        conditions: Vec::new(),
        phase: Some(phase),
        incarnation: old.incarnation,
        pod_name: old.pod_name.clone(),
        pod_uid: old.pod_uid.clone(),
        node_name: old.node_name.clone(),
        eviction,
    };
    place(&mut status, sandbox, view);
    let conditions = Conditions::of(&old.conditions, generation, now).verdict(verdict, reason, &message).set(
        SUSPENDED,
        suspended,
        suspended_reason,
        suspended_message,
    );
    // What was seen of a pod holds until something else is told: the API server may have forgotten, or yet have to say.
    let is_known = status.pod_uid == old.pod_uid && old.conditions.iter().any(|it| it.type_ == NETWORK_ISOLATED);
    let conditions = if report.is_none() && is_known {
        conditions
    } else {
        let (isolated, reason, message) = isolation(report);
        conditions.set(NETWORK_ISOLATED, isolated, reason, message)
    };
    status.conditions = conditions.finish();
    status
}

/// Which pod a worker may speak for. A pod that has ended keeps its place until there is a next one.
fn place(status: &mut SandboxStatus, sandbox: &Sandbox, view: &View) {
    match view {
        View::Pod(pod) => {
            status.incarnation = Some(sandbox.spec.incarnation);
            status.pod_name = Some(pod.name_any());
            status.pod_uid = pod.uid();
            status.node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        }
        View::Suspended { .. } => {
            status.incarnation = None;
            status.pod_name = None;
            status.pod_uid = None;
            status.node_name = None;
        }
        View::Lost | View::Waiting { .. } | View::Invalid(_) => {}
    }
}

fn isolation(report: Option<&IsolationReport>) -> (Truth, Reason, &str) {
    match report {
        None => (Truth::Unknown, Reason::Progressing, "the engine has not tried the network yet"),
        Some(report) if report.isolated => (Truth::True, Reason::NetworkIsolated, &report.detail),
        Some(report) => (Truth::False, Reason::NetworkOpen, &report.detail),
    }
}

fn stage(view: &View) -> Stage {
    match view {
        View::Suspended { leaving } => {
            let message = if *leaving { "the pod is leaving" } else { "there is no pod; a volume stays" };
            new(SandboxPhase::Suspended, Verdict::Resting, Reason::Suspended, message)
        }
        View::Lost => ended("the pod is gone"),
        View::Waiting { reason, message } => {
            new(SandboxPhase::Pending, Verdict::Waiting(Truth::False), *reason, message)
        }
        View::Invalid(problem) => new(SandboxPhase::Failed, Verdict::Stalled, Reason::InvalidSpec, problem),
        View::Pod(pod) => of_pod(pod),
    }
}

fn new(phase: SandboxPhase, verdict: Verdict, reason: Reason, message: &str) -> Stage {
    Stage { phase, verdict, reason, message: message.to_owned() }
}

/// The API server gives a session's Sandbox its next incarnation: it heals without an edit by people.
fn ended(message: &str) -> Stage {
    new(SandboxPhase::Failed, Verdict::Waiting(Truth::False), Reason::PodEnded, message)
}

fn pending(message: &str) -> Stage {
    new(SandboxPhase::Pending, Verdict::Waiting(Truth::False), Reason::PodPending, message)
}

fn of_pod(pod: &Pod) -> Stage {
    let status = pod.status.clone().unwrap_or_default();
    if has_ended(pod) {
        return ended(&end_of(pod));
    }
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    if let Some(message) = containers.iter().find_map(cannot_start) {
        let message = with_memory(&message, containers);
        return new(SandboxPhase::Failed, Verdict::Waiting(Truth::False), Reason::PodFailed, &message);
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_ready = find(conditions, "Ready").is_some_and(|condition| condition.status == "True");
    match status.phase.as_deref() {
        Some("Running") if is_ready => {
            let message = with_memory("the pod runs", containers);
            new(SandboxPhase::Running, Verdict::Ready, Reason::PodRunning, &message)
        }
        Some("Running") => pending(&with_memory(&not_ready(containers), containers)),
        _ => pending(&unscheduled(conditions).unwrap_or_else(|| "the pod is starting".to_owned())),
    }
}

fn end_of(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let detail = [status.reason, status.message].into_iter().flatten().collect::<Vec<_>>().join(": ");
    match (detail.is_empty(), pod.metadata.deletion_timestamp.is_some()) {
        (false, _) => format!("the pod has ended: {detail}"),
        (true, true) => "the pod is being deleted".to_owned(),
        (true, false) => "the pod has ended".to_owned(),
    }
}

/// Reasons for which kubelet keeps trying in vain until something outside changes.
fn cannot_start(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let in_vain = [
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    ];
    let message = waiting.message.as_deref().unwrap_or_default();
    in_vain.contains(&reason).then(|| format!("container {}: {reason}: {message}", container.name))
}

fn not_ready(containers: &[ContainerStatus]) -> String {
    let names: Vec<_> =
        containers.iter().filter(|container| !container.ready).map(|container| container.name.as_str()).collect();
    format!("not running: container {}", names.join(", "))
}

/// Says so where the kernel has killed a container for its memory: nothing else tells why a call's outcome is unknown.
fn with_memory(message: &str, containers: &[ContainerStatus]) -> String {
    let for_memory = |state: Option<&ContainerState>| {
        let ended = state.and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.reason.as_deref() == Some(OUT_OF_MEMORY))
    };
    let killed = containers
        .iter()
        .find(|container| for_memory(container.state.as_ref()) || for_memory(container.last_state.as_ref()));
    let Some(ContainerStatus { name, restart_count, state, .. }) = killed else { return message.to_owned() };
    // Before and after the restart that follows, it is the same story.
    let runs = state.as_ref().is_some_and(|state| state.running.is_some());
    let life = restart_count + i32::from(!runs);
    format!(
        "{message}; container {name} used more memory than its limit ({OUT_OF_MEMORY}), number {life} of its restarts"
    )
}

/// The part of a message that tells of memory; the pod's further fate does not change it.
#[must_use]
pub fn memory_of(message: &str) -> Option<&str> {
    message.rfind("; container ").map(|at| &message[at + 2..]).filter(|part| part.contains(OUT_OF_MEMORY))
}

fn unscheduled(conditions: &[PodCondition]) -> Option<String> {
    let scheduled = find(conditions, "PodScheduled").filter(|condition| condition.status == "False")?;
    Some(format!("no node yet: {}", scheduled.message.as_deref().unwrap_or_default()))
}

fn find<'a>(conditions: &'a [PodCondition], kind: &str) -> Option<&'a PodCondition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use cadre_crds::common::conditions::{READY, RECONCILING, STALLED};
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::conditions::{reason, truth};

    fn sandbox() -> Sandbox {
        serde_json::from_value(json!({
            "apiVersion": "cadre.dev/v1alpha1", "kind": "Sandbox",
            "metadata": {"name": "box", "namespace": "team", "uid": "u", "generation": 3},
            "spec": {"sessionId": "s", "agentRef": {"name": "a"}, "incarnation": 2},
        }))
        .unwrap()
    }

    fn pod(status: Value) -> View {
        let pod = json!({"metadata": {"name": "box-2", "uid": "pod"}, "spec": {"containers": [], "nodeName": "n"}, "status": status});
        View::Pod(Arc::new(serde_json::from_value(pod).unwrap()))
    }

    fn waiting(reason: &str) -> Value {
        json!([{"name": "sandbox", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": reason, "message": "details"}}}])
    }

    #[test]
    fn status_tells_what_the_pod_does() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let unscheduled =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]);
        for (view, phase, why, expected, message) in [
            (pod(json!({})), SandboxPhase::Pending, "PodPending", ["False", "True", ""], "the pod is starting"),
            (
                pod(json!({"phase": "Pending", "conditions": unscheduled})),
                SandboxPhase::Pending,
                "PodPending",
                ["False", "True", ""],
                "no node yet: no room",
            ),
            (
                pod(json!({"phase": "Running", "conditions": ready})),
                SandboxPhase::Running,
                "PodRunning",
                ["True", "", ""],
                "the pod runs",
            ),
            (
                pod(json!({"phase": "Pending", "containerStatuses": waiting("ImagePullBackOff")})),
                SandboxPhase::Failed,
                "PodFailed",
                ["False", "True", ""],
                "container sandbox: ImagePullBackOff: details",
            ),
            (
                pod(json!({"phase": "Pending", "containerStatuses": waiting("ContainerCreating")})),
                SandboxPhase::Pending,
                "PodPending",
                ["False", "True", ""],
                "the pod is starting",
            ),
            (
                pod(json!({"phase": "Failed", "reason": "Evicted", "message": "disk"})),
                SandboxPhase::Failed,
                "PodEnded",
                ["False", "True", ""],
                "the pod has ended: Evicted: disk",
            ),
            (View::Lost, SandboxPhase::Failed, "PodEnded", ["False", "True", ""], "the pod is gone"),
            (View::Invalid("no".into()), SandboxPhase::Failed, "InvalidSpec", ["False", "", "True"], "no"),
            (
                View::Suspended { leaving: false },
                SandboxPhase::Suspended,
                "Suspended",
                ["False", "", ""],
                "there is no pod; a volume stays",
            ),
        ] {
            let status = observe(&sandbox(), &SandboxStatus::default(), &view, None, &now);
            assert_eq!((status.phase, reason(&status.conditions, READY)), (Some(phase), why));
            assert_eq!([READY, RECONCILING, STALLED].map(|kind| truth(&status.conditions, kind)), expected, "{why}");
            let ready = status.conditions.iter().find(|condition| condition.type_ == READY).unwrap();
            assert_eq!(ready.message, message);
            assert_eq!(truth(&status.conditions, SUSPENDED) == "True", why == "Suspended");
        }
    }

    #[test]
    fn each_kill_for_memory_is_told_once() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let ended = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let running = json!({"running": {}});
        let backing_off = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let mut old = SandboxStatus::default();
        // Killed, restarted, ready, not ready for another reason, ready; killed again, and kept from starting.
        for (ready, restarts, state, last, told) in [
            ("False", 0, &ended, &json!({}), true),
            ("False", 1, &running, &ended, false),
            ("True", 1, &running, &ended, false),
            ("False", 1, &running, &ended, false),
            ("True", 1, &running, &ended, false),
            ("False", 1, &ended, &ended, true),
            ("False", 1, &backing_off, &ended, false),
        ] {
            let container = json!([{"name": "sandbox", "image": "", "imageID": "", "ready": ready == "True",
                "restartCount": restarts, "state": state, "lastState": last}]);
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let view = pod(json!({"phase": "Running", "conditions": conditions, "containerStatuses": container}));
            let new = observe(&sandbox(), &old, &view, None, &now);
            let message = &new.conditions.iter().find(|condition| condition.type_ == READY).unwrap().message;
            assert!(message.contains("container sandbox used more memory"), "{message}");
            let stories = super::super::stories(&sandbox(), &old, &new);
            assert_eq!(stories.iter().any(|story| story.reason == OUT_OF_MEMORY), told, "{stories:?}");
            old = new;
        }
    }

    #[test]
    fn a_worker_s_identity_is_there_from_the_first_write_on_and_stays_until_the_next_pod() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let first = observe(&sandbox(), &SandboxStatus::default(), &pod(json!({})), None, &now);
        assert_eq!((first.pod_uid.as_deref(), first.incarnation), (Some("pod"), Some(2)));
        let lost = observe(&sandbox(), &first, &View::Lost, None, &now);
        assert_eq!(lost.pod_uid.as_deref(), Some("pod"));
        let suspended = observe(&sandbox(), &lost, &View::Suspended { leaving: true }, None, &now);
        assert_eq!((suspended.pod_uid, suspended.incarnation), (None, None));
    }

    #[test]
    fn isolation_is_what_the_engine_saw() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let report = |isolated| IsolationReport {
            namespace: "team".into(),
            sandbox: "box".into(),
            isolated,
            detail: "10.96.0.1:443".into(),
        };
        for (report, expected) in [
            (None, ("Unknown", "Progressing")),
            (Some(report(true)), ("True", "NetworkIsolated")),
            (Some(report(false)), ("False", "NetworkOpen")),
        ] {
            let status = observe(&sandbox(), &SandboxStatus::default(), &View::Lost, report.as_ref(), &now);
            let kind = NETWORK_ISOLATED;
            assert_eq!((truth(&status.conditions, kind), reason(&status.conditions, kind)), expected);
        }
    }

    #[test]
    fn isolation_holds_for_its_pod_while_nobody_tells() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let report = IsolationReport {
            namespace: "team".into(),
            sandbox: "box".into(),
            isolated: true,
            detail: "10.96.0.1:443".into(),
        };
        let told = observe(&sandbox(), &SandboxStatus::default(), &pod(json!({})), Some(&report), &now);
        assert_eq!(observe(&sandbox(), &told, &pod(json!({})), None, &now), told);
        let of_another = SandboxStatus { pod_uid: Some("old".into()), ..told };
        let next = observe(&sandbox(), &of_another, &pod(json!({})), None, &now);
        assert_eq!(truth(&next.conditions, NETWORK_ISOLATED), "Unknown");
    }
}
