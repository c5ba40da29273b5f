//! Limits on sessions that run at once.

use std::sync::Arc;

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::{ComponentRef, RunId};
use cadre_store::Store;
use cadre_store::branches::{ResumeOutcome, Resumption};
use cadre_store::rows::{Claim, NewRun};
use cadre_store::shares::SlotLimits;

use super::Database;
use super::fixtures::*;
use super::resumption::resumption;

/// A run of an agent with a limit.
fn limited(session_id: &str, name: &str, most: u32) -> NewRun {
    let mut agent = agent(name);
    agent.max_concurrent_sessions = Some(most);
    new_run_of(session_id, agent)
}

async fn granted(store: &dyn Store, name: &str) -> Vec<RunId> {
    let component = ComponentRef::agent("default", name);
    store
        .grant(Some(&component), SlotLimits::default())
        .await
        .unwrap()
        .into_iter()
        .map(|waiting| waiting.run_id)
        .collect()
}

async fn take(store: &dyn Store, run_id: &RunId) -> bool {
    store.take(run_id, &worker("w"), "w", now()).await.unwrap().is_some()
}

pub async fn an_agents_sessions_wait_for_slots(database: &impl Database) {
    let store = database.open();
    let mut runs = Vec::new();
    for number in 0..5 {
        runs.push(accepted(&*store, limited(&format!("s{number}"), "narrow", 2)).await.0.run_id);
    }
    let behind = accepted(&*store, limited("s0", "narrow", 2)).await.0.run_id;
    let free = accept(&*store, "free").await;
    assert!(!take(&*store, &runs[0]).await, "it has no slot yet");
    assert_eq!(store.waiting(10).await.unwrap().len(), 1, "the one that needs none");
    assert_eq!(granted(&*store, "narrow").await, runs[..2], "first come, first served");
    assert!(granted(&*store, "narrow").await.is_empty());
    assert!(take(&*store, &runs[0]).await && take(&*store, &runs[1]).await && take(&*store, &free).await);
    let epoch = store.lease(&session("s0")).await.unwrap().unwrap().epoch;
    complete(&*store, "s0", &runs[0], epoch, 0).await;
    assert_eq!(granted(&*store, "narrow").await, runs[2..3], "before the session's next");
    store.cancel(&runs[2], None, "", now()).await.unwrap();
    assert_eq!(granted(&*store, "narrow").await, runs[3..4]);
    let epoch = store.lease(&session("s1")).await.unwrap().unwrap().epoch;
    complete(&*store, "s1", &runs[1], epoch, 0).await;
    assert_eq!(granted(&*store, "narrow").await, runs[4..5]);
    assert!(!take(&*store, &behind).await);
}

pub async fn a_claim_takes_a_slot_or_waits(database: &impl Database) {
    let store = database.open();
    let claim = || Some(Claim::New { worker_id: worker("w"), registration: "w".into() });
    let (_, _, first) = accepted(&*store, NewRun { claim: claim(), ..limited("a", "narrow", 1) }).await;
    let first = first.unwrap();
    assert_eq!(first.epoch.0, 1);
    let (second, _, started) = accepted(&*store, NewRun { claim: claim(), ..limited("b", "narrow", 1) }).await;
    assert!(started.is_none());
    complete(&*store, "a", &first.run.run_id, first.epoch, 0).await;
    let (_, _, third) = accepted(&*store, NewRun { claim: claim(), ..limited("c", "narrow", 1) }).await;
    assert!(third.is_none(), "another one waits");
    assert_eq!(granted(&*store, "narrow").await, [second.run_id]);
}

pub async fn a_run_that_goes_on_keeps_a_limit_that_came_later(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    fail(&*store, "s", &run_id, held.epoch, 0).await;
    // Meanwhile its agent got one slot, which another session has.
    let other = accepted(&*store, limited("t", "helper", 1)).await.0.run_id;
    assert_eq!(granted(&*store, "helper").await, std::slice::from_ref(&other));
    let started = store.take(&other, &worker("w"), "w", now()).await.unwrap().unwrap();
    let limited = Resumption { is_limited: true, ..resumption(&run_id, 0, None) };
    let agent = Arc::new(AgentSnapshot { max_concurrent_sessions: Some(1), ..(*limited.agent).clone() });
    let resumed = store.resume(Resumption { revision: agent.revision(), agent, ..limited }).await.unwrap();
    assert!(matches!(resumed, ResumeOutcome::Resumed { .. }), "{resumed:?}");
    assert_eq!(granted(&*store, "helper").await, []);
    assert!(!take(&*store, &run_id).await, "it waits for its slot");
    complete(&*store, "t", &other, started.epoch, 0).await;
    assert_eq!(granted(&*store, "helper").await, std::slice::from_ref(&run_id));
    assert!(take(&*store, &run_id).await);
}

pub async fn all_agents_share_the_servers_slots(database: &impl Database) {
    let store = database.open();
    let mut runs = Vec::new();
    for (number, name) in ["a", "narrow", "narrow", "b", "c"].into_iter().enumerate() {
        let run = if name == "narrow" {
            limited(&number.to_string(), name, 1)
        } else {
            new_run_of(&number.to_string(), agent(name))
        };
        runs.push(accepted(&*store, NewRun { max_running: 3, ..run }).await.0.run_id);
    }
    let all = async || -> Vec<RunId> {
        store
            .grant(None, SlotLimits { of_all: 3, of_namespace: 0 })
            .await
            .unwrap()
            .into_iter()
            .map(|waiting| waiting.run_id)
            .collect()
    };
    assert_eq!(all().await, [&runs[0], &runs[1], &runs[3]].map(Clone::clone));
    assert!(all().await.is_empty());
    store.cancel(&runs[0], None, "", now()).await.unwrap();
    assert_eq!(all().await, runs[4..5], "the agent with a limit of its own has no room");
}

pub async fn many_who_give_slots_give_no_more_than_there_are(database: &impl Database) {
    let store = database.open();
    for number in 0..30 {
        accepted(&*store, limited(&format!("s{number}"), "narrow", 7)).await;
    }
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let store = store.clone();
        tasks.spawn(async move { granted(&*store, "narrow").await });
    }
    let granted: Vec<RunId> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(granted.len(), 7);
}
