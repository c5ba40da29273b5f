//! Pods that kubelet evicted for what they used themselves: a second one for the same cause is the last. Pure.
//!
//! A node that runs low evicts whom it will; that says nothing of the next pod on another node, and does not count.

use cadre_crds::sandbox::{Eviction, SandboxSpec};
use k8s_openapi::api::core::v1::Pod;

use super::status::View;

/// Beginnings of kubelet's words for what is the node's trouble.
const OF_THE_NODE: [&str; 2] = ["The node was low", "The node had condition"];
/// Longest cause that is kept, in bytes.
const MAX_BYTES: usize = 300;

/// What is known of evictions once this is seen. It is forgotten with the Sandbox's suspension.
#[must_use]
pub fn after(old: Option<&Eviction>, incarnation: u32, view: &View) -> Option<Eviction> {
    let pod = match view {
        View::Suspended { .. } => return None,
        View::Pod(pod) => pod,
        View::Lost | View::Waiting { .. } | View::Invalid(_) => return old.cloned(),
    };
    let Some(cause) = cause(pod) else { return old.cloned() };
    match old {
        Some(old) if old.incarnation == incarnation => Some(old.clone()),
        old => {
            let again = old.is_some_and(|old| old.cause == cause);
            Some(Eviction { incarnation, cause, again })
        }
    }
}

/// Why there will be no further pod. A session's only: a Sandbox made by hand gets its pod again for as long as it wants.
#[must_use]
pub fn verdict(eviction: Option<&Eviction>, spec: &SandboxSpec) -> Option<String> {
    let eviction = eviction.filter(|it| it.again && it.incarnation == spec.incarnation && spec.session_id.is_some())?;
    Some(format!("pods were evicted twice for the same cause: {}. Give them more of it", eviction.cause))
}

/// What a pod was evicted for, without the numbers that kubelet adds.
fn cause(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref().filter(|status| status.reason.as_deref() == Some("Evicted"))?;
    let message = status.message.as_deref().unwrap_or_default().trim();
    if OF_THE_NODE.iter().any(|beginning| message.starts_with(beginning)) {
        return None;
    }
    let sentence = message.split(". ").next().unwrap_or_default().trim_end_matches('.');
    Some(sentence[..sentence.floor_char_boundary(MAX_BYTES)].to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    const FULL: &str = "Usage of EmptyDir volume \"workspace\" exceeds the limit \"64Mi\". ";

    fn evicted(message: &str) -> View {
        let pod = json!({"metadata": {"name": "box"},
            "status": {"phase": "Failed", "reason": "Evicted", "message": message}});
        View::Pod(Arc::new(serde_json::from_value(pod).unwrap()))
    }

    fn running() -> View {
        View::Pod(Arc::new(serde_json::from_value(json!({"status": {"phase": "Running"}})).unwrap()))
    }

    fn spec(incarnation: u32, session_id: Option<&str>) -> SandboxSpec {
        serde_json::from_value(json!({"incarnation": incarnation, "sessionId": session_id})).unwrap()
    }

    #[test]
    fn the_second_for_the_same_cause_is_the_last() {
        let first = after(None, 1, &evicted(FULL)).unwrap();
        assert_eq!(first.cause, "Usage of EmptyDir volume \"workspace\" exceeds the limit \"64Mi\"");
        assert!(!first.again && verdict(Some(&first), &spec(1, Some("s"))).is_none());
        assert_eq!(after(Some(&first), 1, &evicted(FULL)), Some(first.clone()), "the same pod, seen again");
        assert_eq!(after(Some(&first), 2, &running()), Some(first.clone()));
        let second = after(Some(&first), 2, &evicted(FULL)).unwrap();
        assert!(second.again);
        assert_eq!(after(Some(&second), 2, &View::Lost), Some(second.clone()), "its pod is gone since");
        assert!(verdict(Some(&second), &spec(2, Some("s"))).unwrap().contains("\"64Mi\""));
        assert_eq!(verdict(Some(&second), &spec(3, Some("s"))), None, "who asks for another pod gets one");
        assert_eq!(verdict(Some(&second), &spec(2, None)), None, "made by hand");
        assert_eq!(after(Some(&second), 2, &View::Suspended { leaving: false }), None);
    }

    #[test]
    fn another_cause_begins_anew_and_a_nodes_trouble_does_not_count() {
        let first = after(None, 1, &evicted(FULL)).unwrap();
        let other = "Container sandbox exceeded its local ephemeral storage limit \"1.5Gi\". ";
        let second = after(Some(&first), 2, &evicted(other)).unwrap();
        assert_eq!((second.cause.as_str(), second.again), (other.trim_end_matches(". "), false));
        let low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 9Mi.";
        assert_eq!(after(None, 1, &evicted(low)), None);
        assert_eq!(after(Some(&first), 2, &evicted(low)), Some(first));
    }
}
