//! Budgets of runs and Models over the link (security rule 17).

use cadre_protocol::model::{ModelError, ModelErrorCategory, ModelReply};
use cadre_protocol::worker::{Assignment, MAX_FRAME_BYTES, ServerFrame, WorkerFrame};

use crate::support::*;
use crate::upstream::{Gate, Upstream, ask, manifests, outcome};

async fn begun(rig: &Rig, worker: &mut Worker, agent: &str) -> Assignment {
    rig.submit(agent, None).await;
    worker.assignment().await
}

/// The error of a refused call.
fn refused(outcome: Result<ModelReply, ModelError>) -> ModelError {
    let error = outcome.unwrap_err();
    assert_eq!(error.category, ModelErrorCategory::Budget, "{error}");
    assert!(error.category.is_permanent());
    error
}

#[tokio::test]
async fn parallel_calls_of_a_run_stay_within_its_tokens() {
    let upstream = Upstream::start().await;
    let rig = rig_of(&manifests(&upstream, "1"), memory().await, limits()).await;
    let mut worker = rig.worker("pool").await;
    let assignment = begun(&rig, &mut worker, "thrifty").await;
    for call in 1..=5 {
        worker.send(ask(&assignment, call, "priced")).await;
    }
    // Two may take some 2,200 each; the others are refused before anything is asked.
    until("two calls are under way", || upstream.seen() == 2).await;
    let mut errors = Vec::new();
    for _ in 0..3 {
        let failed = |frame: &ServerFrame| match frame {
            ServerFrame::ModelFailed { error, .. } => Some(error.clone()),
            _ => None,
        };
        errors.push(refused(Err(worker.expect("a refusal", failed).await)));
    }
    assert!(errors[0].message.contains("of 5000 tokens are used or reserved"), "{}", errors[0].message);
    assert!(upstream.limits().iter().all(|limit| *limit <= 1_000), "extra lifts no limit: {:?}", upstream.limits());
    upstream.set(Gate::Open(10, 5));
    for _ in 0..2 {
        let replied = |frame: &ServerFrame| matches!(frame, ServerFrame::ModelReply { .. }).then_some(());
        worker.expect("a reply", replied).await;
    }
    // What was not used is there again, and 30 tokens are gone.
    worker.send(ask(&assignment, 6, "priced")).await;
    outcome(&mut worker, 6).await.unwrap();
    assert_eq!(upstream.seen(), 3);
}

#[tokio::test]
async fn a_run_without_money_for_a_prompt_asks_nobody() {
    let upstream = Upstream::start().await;
    let rig = rig_of(&manifests(&upstream, "1"), memory().await, limits()).await;
    let mut worker = rig.worker("pool").await;
    let assignment = begun(&rig, &mut worker, "poor").await;
    worker.send(ask(&assignment, 1, "priced")).await;
    let error = refused(outcome(&mut worker, 1).await);
    assert!(error.message.contains("$0 of $0.0001 are used or reserved"), "{}", error.message);
    assert_eq!(upstream.seen(), 0);
}

#[tokio::test]
async fn what_a_call_did_not_take_is_there_again() {
    let upstream = Upstream::start().await;
    // Enough for one call of at most some 0.0033 dollars, not for two.
    let rig = rig_of(&manifests(&upstream, "0.004"), memory().await, limits()).await;
    let mut worker = rig.worker("pool").await;
    let assignment = begun(&rig, &mut worker, "shares").await;
    upstream.set(Gate::Broken);
    for call in 1..=3 {
        worker.send(ask(&assignment, call, "shared")).await;
        let error = outcome(&mut worker, call).await.unwrap_err();
        assert_eq!(error.category, ModelErrorCategory::BadRequest, "it was asked, and said no: {error}");
    }
    upstream.set(Gate::Open(10, 5));
    for call in 4..=6 {
        worker.send(ask(&assignment, call, "shared")).await;
        assert_eq!(outcome(&mut worker, call).await.unwrap().cost_nano_usd, Some(20_000));
    }
    // A provider that tells no usage: what is reserved is spent.
    upstream.set(Gate::Open(0, 0));
    worker.send(ask(&assignment, 7, "shared")).await;
    outcome(&mut worker, 7).await.unwrap();
    worker.send(ask(&assignment, 8, "shared")).await;
    let error = refused(outcome(&mut worker, 8).await);
    assert!(error.message.contains("of $0.004 are spent or reserved"), "{}", error.message);
}

#[tokio::test]
async fn a_call_that_was_taken_back_counts_as_spent() {
    let upstream = Upstream::start().await;
    let rig = rig_of(&manifests(&upstream, "0.004"), memory().await, limits()).await;
    let mut worker = rig.worker("pool").await;
    let assignment = begun(&rig, &mut worker, "shares").await;
    worker.send(ask(&assignment, 1, "shared")).await;
    until("it is under way", || upstream.seen() == 1).await;
    worker.send(WorkerFrame::CancelCall { call: 1 }).await;
    worker.send(ask(&assignment, 2, "shared")).await;
    refused(outcome(&mut worker, 2).await);
    assert_eq!(upstream.seen(), 1);
}

#[tokio::test]
async fn an_agent_with_a_budget_and_a_model_without_prices_does_not_run() {
    let upstream = Upstream::start().await;
    let rig = rig_of(&manifests(&upstream, "1"), memory().await, limits()).await;
    let refused = rig.service.submit(submit("unknown", None)).await.unwrap_err();
    assert!(refused.to_string().contains("set spec.pricing of Model \"unpriced\""), "{refused}");
    // Without a budget nothing is reserved and no limit is sent.
    let mut worker = rig.worker("pool").await;
    upstream.set(Gate::Open(10, 5));
    let assignment = begun(&rig, &mut worker, "free").await;
    worker.send(ask(&assignment, 1, "unpriced")).await;
    outcome(&mut worker, 1).await.unwrap();
    assert_eq!(upstream.limits(), [100_000]);
}

#[tokio::test]
async fn an_answer_that_no_worker_takes_fails_its_call_and_not_the_connection() {
    let upstream = Upstream::start().await;
    let rig = rig_of(&manifests(&upstream, "1"), memory().await, limits()).await;
    let mut worker = rig.worker("pool").await;
    let assignment = begun(&rig, &mut worker, "free").await;
    upstream.set(Gate::Long(MAX_FRAME_BYTES + 1));
    worker.send(ask(&assignment, 1, "unpriced")).await;
    let error = outcome(&mut worker, 1).await.unwrap_err();
    assert!(error.category.is_permanent() && error.message.contains("larger than a worker takes"), "{error}");
    assert_eq!(upstream.seen(), 1, "it was paid once");
    upstream.set(Gate::Long(10));
    worker.send(ask(&assignment, 2, "unpriced")).await;
    outcome(&mut worker, 2).await.unwrap();
}
