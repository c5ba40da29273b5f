//! One namespace that takes all it can get, and another, over two servers on one database (security rule 21).

use cadre_api::domain::shares::NamespaceShares;
use cadre_api::domain::{DomainError, Limits, Submit};
use cadre_protocol::ids::{ComponentRef, RunId};
use cadre_protocol::worker::Assignment;

use crate::replicas::{told, two_of};
use crate::support::*;

/// An agent in each of two namespaces.
fn manifests() -> String {
    let of = |namespace: &str| {
        format!(
            "---
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {{name: echo, namespace: {namespace}}}
spec: {{provider: Scripted, model: echo-1}}
---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {{name: helper, namespace: {namespace}}}
spec: {{modelRef: {{name: echo}}}}
"
        )
    };
    of("busy") + &of("calm")
}

async fn submit_in(rig: &Rig, namespace: &str) -> Result<RunId, DomainError> {
    let submit = Submit::text(ComponentRef::agent(namespace, "helper"), principal(), "hello");
    Ok(rig.service.submit(submit).await?.run.run_id)
}

/// The next assignment of either worker, and whose it is.
async fn next([one, two]: &mut [Worker; 2]) -> (Assignment, usize) {
    tokio::select! {
        assignment = one.assignment() => (assignment, 0),
        assignment = two.assignment() => (assignment, 1),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saturated_namespace_delays_no_run_of_another_by_more_than_one() {
    const SLOTS: u32 = 4;
    const SHARE: u32 = 40;
    let shares = NamespaceShares { max_queue_depth: SHARE, ..NamespaceShares::default() };
    let (here, there) = two_of(&manifests(), Limits { max_running: SLOTS, shares, ..told() }).await;
    let mut workers = [here.worker("pool1").await, there.worker("pool2").await];
    // It takes all slots and its whole share of the queue.
    let mut accepted = 0;
    let refused = loop {
        let rig = if accepted % 2 == 0 { &here } else { &there };
        match submit_in(rig, "busy").await {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted <= SLOTS + SHARE, "there is a limit");
    };
    assert!(matches!(refused, DomainError::NamespaceQueueFull(namespace) if namespace == "busy"));
    let mut running = Vec::new();
    for _ in 0..SLOTS {
        running.push(next(&mut workers).await);
    }
    // Another's run is accepted, and gets the first slot that becomes free, again and again.
    for round in 0..6 {
        let rig = if round % 2 == 0 { &here } else { &there };
        let calm = submit_in(rig, "calm").await.expect("the queue has room for another namespace");
        let (ends, at) = running.remove(0);
        workers[at].finish(&ends).await;
        let (assignment, at) = next(&mut workers).await;
        assert_eq!(assignment.run_id, calm, "round {round}");
        workers[at].finish(&assignment).await;
        // Then the saturated one goes on.
        let (assignment, at) = next(&mut workers).await;
        assert_ne!(assignment.run_id, calm);
        running.push((assignment, at));
    }
}
