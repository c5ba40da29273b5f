//! What a Sandbox needs, from what is there. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use cadre_crds::common::conditions::READY;
use cadre_crds::common::reasons::Reason;
use cadre_crds::sandbox::{OperatingMode, Persistence, Sandbox, SandboxStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::conditions::reason;
use crate::objects::{labels, pod};

/// What is wanted of the present incarnation's pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Want {
    /// No pod.
    Nothing {
        /// Pods are still there.
        leaving: bool,
    },
    /// It is there, well or not.
    Keep(Arc<Pod>),
    /// It must be created.
    Create,
    /// It can't be created yet.
    Wait(&'static str),
    /// It was there and is gone.
    Lost {
        /// Status says so already; else the cache may only lag.
        known: bool,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The present incarnation's pod.
    pub want: Want,
    /// Pods that must go.
    pub remove: Vec<Arc<Pod>>,
}

/// Decides.
#[must_use]
pub fn decide(sandbox: &Sandbox, status: &SandboxStatus, pods: &BTreeMap<String, Arc<Pod>>) -> Decision {
    let spec = &sandbox.spec;
    let uid = sandbox.uid().unwrap_or_default();
    let own = pods.values().filter(|pod| labels::is_owned_by(&pod.metadata, &uid)).cloned();
    if spec.operating_mode == OperatingMode::Suspended {
        let remove: Vec<_> = own.collect();
        return Decision { want: Want::Nothing { leaving: !remove.is_empty() }, remove };
    }
    let name = pod::name(&sandbox.name_any(), spec.incarnation);
    let (mut current, mut old): (Vec<_>, Vec<_>) = own.partition(|pod| pod.name_any() == name);
    let want = match current.pop() {
        Some(pod) if spec.session_id.is_none() && has_ended(&pod) => {
            old.push(pod);
            Want::Wait("the pod has ended and is being replaced")
        }
        Some(pod) if spec.session_id.is_none() && pod::is_of_another_template(sandbox, &pod) => {
            old.push(pod);
            Want::Wait("the template has changed: the pod is being replaced")
        }
        Some(pod) => Want::Keep(pod),
        None if pods.contains_key(&name) => Want::Wait("a pod of an earlier Sandbox of this name is being removed"),
        None => absent(sandbox, status, !old.is_empty()),
    };
    Decision { want, remove: old }
}

fn absent(sandbox: &Sandbox, status: &SandboxStatus, old_pods: bool) -> Want {
    let spec = &sandbox.spec;
    let existed = status.pod_uid.is_some() && status.incarnation == Some(spec.incarnation);
    if existed && spec.session_id.is_some() {
        let told = [Reason::PodEnded, Reason::EvictedAgain].map(Reason::as_str);
        return Want::Lost { known: told.contains(&reason(&status.conditions, READY)) };
    }
    // Two pods on one volume would write into each other's files.
    if old_pods && spec.template.workspace.persistence == Persistence::Volume {
        return Want::Wait("the last pod must leave the volume first");
    }
    Want::Create
}

/// Whether a pod runs no more, or is told to stop.
#[must_use]
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Failed" | "Succeeded"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sandbox(spec: Value) -> Sandbox {
        serde_json::from_value(json!({
            "apiVersion": "cadre.dev/v1alpha1", "kind": "Sandbox",
            "metadata": {"name": "box", "namespace": "team", "uid": "u"}, "spec": spec,
        }))
        .unwrap()
    }

    fn pod(name: &str, owner: &str, phase: &str) -> (String, Arc<Pod>) {
        let pod = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid"), "ownerReferences": [
                {"apiVersion": "cadre.dev/v1alpha1", "kind": "Sandbox", "name": "box", "uid": owner, "controller": true}]},
            "status": {"phase": phase},
        });
        (name.to_owned(), Arc::new(serde_json::from_value(pod).unwrap()))
    }

    /// A pod as it is built.
    fn pod_of(sandbox: &Sandbox) -> (String, Arc<Pod>) {
        let settings = pod::PodSettings {
            api: "ws://10.96.0.7:7780".into(),
            probe: None,
            agent_image: "a".into(),
            sandbox_image: "s".into(),
            image_pull_policy: "IfNotPresent".into(),
        };
        let pod = pod::build(sandbox, &settings);
        (pod.name_any(), Arc::new(pod))
    }

    fn had_pod(reason: &str) -> SandboxStatus {
        serde_json::from_value(json!({"incarnation": 1, "podUID": "x", "conditions": [{
            "type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"
        }]}))
        .unwrap()
    }

    fn session(more: Value) -> Sandbox {
        let mut spec = json!({"sessionId": "s", "agentRef": {"name": "a"}, "incarnation": 1});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sandbox(spec)
    }

    #[test]
    fn the_pod_of_a_session_stays_whatever_it_was_made_from() {
        let mut sandbox = sandbox(json!({"incarnation": 1}));
        let (name, pod) = pod_of(&sandbox);
        sandbox.spec.template.run_as_user = 8;
        assert!(pod::is_of_another_template(&sandbox, &pod));
        sandbox.spec.session_id = Some("s".into());
        let decision = decide(&sandbox, &SandboxStatus::default(), &[(name, pod.clone())].into());
        assert_eq!(decision.want, Want::Keep(pod));
    }

    type Row = (&'static str, Sandbox, SandboxStatus, Vec<(String, Arc<Pod>)>, Want, Vec<&'static str>);

    #[test]
    fn the_present_pod_is_made_once_and_old_ones_go() {
        let volume = json!({"template": {"workspace": {"persistence": "Volume"}}});
        let running = pod("box-1", "u", "Running");
        let failed = pod("box-1", "u", "Failed");
        let old = pod("box-0", "u", "Running");
        let of_template = pod_of(&sandbox(json!({"incarnation": 1, "template": {"runAsUser": 7}})));
        let rows: Vec<Row> = vec![
            ("new", session(json!({})), SandboxStatus::default(), vec![], Want::Create, vec![]),
            ("runs", session(json!({})), had_pod("x"), vec![running.clone()], Want::Keep(running.1.clone()), vec![]),
            ("ended", session(json!({})), had_pod("x"), vec![failed.clone()], Want::Keep(failed.1.clone()), vec![]),
            ("lost", session(json!({})), had_pod("PodRunning"), vec![], Want::Lost { known: false }, vec![]),
            ("known", session(json!({})), had_pod("PodEnded"), vec![], Want::Lost { known: true }, vec![]),
            ("evicted", session(json!({})), had_pod("EvictedAgain"), vec![], Want::Lost { known: true }, vec![]),
            (
                "next",
                session(json!({"incarnation": 2})),
                had_pod("x"),
                vec![running.clone()],
                Want::Create,
                vec!["box-1"],
            ),
            (
                "next on a volume",
                session({
                    let mut more = volume;
                    more["incarnation"] = json!(2);
                    more
                }),
                had_pod("x"),
                vec![running.clone()],
                Want::Wait("the last pod must leave the volume first"),
                vec!["box-1"],
            ),
            (
                "foreign",
                session(json!({})),
                SandboxStatus::default(),
                vec![pod("box-1", "other", "Running")],
                Want::Wait("a pod of an earlier Sandbox of this name is being removed"),
                vec![],
            ),
            (
                "suspended",
                session(json!({"operatingMode": "Suspended"})),
                had_pod("x"),
                vec![old, running],
                Want::Nothing { leaving: true },
                vec!["box-0", "box-1"],
            ),
            (
                "by hand, ended",
                sandbox(json!({"incarnation": 1})),
                had_pod("x"),
                vec![failed],
                Want::Wait("the pod has ended and is being replaced"),
                vec!["box-1"],
            ),
            (
                "by hand, as made",
                sandbox(json!({"incarnation": 1, "template": {"runAsUser": 7}})),
                had_pod("x"),
                vec![of_template.clone()],
                Want::Keep(of_template.1.clone()),
                vec![],
            ),
            (
                "by hand, changed",
                sandbox(json!({"incarnation": 1, "template": {"runAsUser": 8}})),
                had_pod("x"),
                vec![of_template],
                Want::Wait("the template has changed: the pod is being replaced"),
                vec!["box-1"],
            ),
            ("by hand, gone", sandbox(json!({"incarnation": 1})), had_pod("PodEnded"), vec![], Want::Create, vec![]),
        ];
        for (what, sandbox, status, pods, want, remove) in rows {
            let decision = decide(&sandbox, &status, &pods.into_iter().collect());
            assert_eq!(decision.want, want, "{what}");
            assert_eq!(decision.remove.iter().map(|pod| pod.name_any()).collect::<Vec<_>>(), remove, "{what}");
        }
    }
}
