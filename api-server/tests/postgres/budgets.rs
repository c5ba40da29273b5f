//! A Model's budget over two servers on one database (security rule 17).

use cadre_protocol::model::ModelErrorCategory;
use cadre_protocol::worker::ServerFrame;

use crate::replicas::{told, two_of};
use crate::support::*;
use crate::upstream::{Gate, Upstream, ask, manifests};

const CALLS: u64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_calls_on_two_servers_never_pass_a_models_budget() {
    let upstream = Upstream::start().await;
    // A call may cost some 0.0033 dollars: 1,300 tokens of prompt and 1,000 of answer. Three fit.
    let (here, there) = two_of(&manifests(&upstream, "0.0105"), told()).await;
    let mut workers = [here.worker("pool1").await, there.worker("pool2").await];
    let mut assignments = Vec::new();
    for (rig, worker) in [&here, &there].into_iter().zip(&mut workers) {
        // Of the runs' own session, so that each run is this worker's.
        rig.submit("shares", None).await;
        assignments.push(worker.assignment().await);
    }
    for round in 0..3_u64 {
        upstream.set(Gate::Shut);
        let before = upstream.seen();
        for call in 0..CALLS {
            for (worker, assignment) in workers.iter_mut().zip(&assignments) {
                worker.send(ask(assignment, round * CALLS + call, "shared")).await;
            }
        }
        let mut refused = 0;
        while refused < 2 * CALLS - 3 {
            let failed = |frame: &ServerFrame| match frame {
                ServerFrame::ModelFailed { error, .. } => Some(error.category),
                _ => None,
            };
            let [one, two] = &mut workers;
            let category = tokio::select! {
                category = one.expect("a refusal", failed) => category,
                category = two.expect("a refusal", failed) => category,
            };
            assert_eq!(category, ModelErrorCategory::Budget);
            refused += 1;
        }
        until("three are under way", || upstream.seen() - before == 3).await;
        // They cost little: then as many fit again.
        upstream.set(Gate::Open(10, 5));
        for _ in 0..3 {
            let replied = |frame: &ServerFrame| matches!(frame, ServerFrame::ModelReply { .. }).then_some(());
            let [one, two] = &mut workers;
            tokio::select! {
                () = one.expect("a reply", replied) => {}
                () = two.expect("a reply", replied) => {}
            }
        }
    }
}
