//! What one namespace may take of what all share.

use std::collections::HashMap;

use cadre_protocol::ids::{ComponentRef, RunId};
use cadre_store::Store;
use cadre_store::branches::{ResumeOutcome, Resumption, SessionFork, SessionForkOutcome};
use cadre_store::rows::{AcceptOutcome, Claim, NewRun, Waiting};
use cadre_store::shares::{BlobPlace, Shares, SlotLimits};

use super::Database;
use super::fixtures::*;

/// A run in a namespace, in a session of its own.
fn run_in(namespace: &str, number: u32) -> NewRun {
    let mut agent = agent("helper");
    agent.component = ComponentRef::agent(namespace, "helper");
    new_run_of(&format!("{namespace}-{number}"), agent)
}

/// The same, where slots are limited.
fn limited(namespace: &str, number: u32, limits: SlotLimits) -> NewRun {
    let shares = Shares { max_running: limits.of_namespace, ..Shares::default() };
    NewRun { max_running: limits.of_all, shares, ..run_in(namespace, number) }
}

async fn fill(store: &dyn Store, namespace: &str, count: u32, limits: SlotLimits) -> Vec<RunId> {
    let mut runs = Vec::new();
    for number in 0..count {
        runs.push(accepted(store, limited(namespace, number, limits)).await.0.run_id);
    }
    runs
}

/// Namespaces of runs.
fn whose(waiting: &[Waiting]) -> Vec<&str> {
    waiting.iter().map(|run| run.component.namespace.as_str()).collect()
}

async fn grant(store: &dyn Store, limits: SlotLimits) -> Vec<Waiting> {
    store.grant(None, limits).await.unwrap()
}

async fn end(store: &dyn Store, run_id: &RunId) {
    store.cancel(run_id, None, "", now()).await.unwrap();
}

pub async fn a_namespaces_queue_is_full_and_anothers_is_not(database: &impl Database) {
    let store = database.open();
    let shares = Shares { max_queue_depth: 20, ..Shares::default() };
    let of = |namespace: &str, number| NewRun { max_queue_depth: 25, shares, ..run_in(namespace, number) };
    for number in 0..20 {
        accepted(&*store, of("busy", number)).await;
    }
    assert!(matches!(store.accept(of("busy", 20)).await.unwrap(), AcceptOutcome::NamespaceFull(_)));
    let mut others = Vec::new();
    for number in 0..5 {
        others.push(accepted(&*store, of("calm", number)).await.0.run_id);
    }
    assert!(matches!(store.accept(of("calm", 5)).await.unwrap(), AcceptOutcome::QueueFull), "that of all");
    end(&*store, &others[0]).await;
    assert!(matches!(store.accept(of("busy", 20)).await.unwrap(), AcceptOutcome::NamespaceFull(_)));
    accepted(&*store, of("calm", 5)).await;

    // A run that goes on is one more that waits.
    let (run_id, lease) = running(&*store, "default-0").await;
    fail(&*store, "default-0", &run_id, lease.epoch, 0).await;
    accepted(&*store, run_in("default", 1)).await;
    let resumption = |most| Resumption {
        run_id: run_id.clone(),
        of: 0,
        input: None,
        question: None,
        key: None,
        agent: agent("helper").into(),
        revision: agent("helper").revision(),
        max_queue_depth: 0,
        shares: Shares { max_queue_depth: most, ..Shares::default() },
        is_limited: false,
        at_ms: now(),
    };
    assert!(matches!(store.resume(resumption(1)).await.unwrap(), ResumeOutcome::NamespaceFull));
    assert!(matches!(store.resume(resumption(2)).await.unwrap(), ResumeOutcome::Resumed { .. }));
}

pub async fn a_slot_goes_to_the_namespace_that_has_the_fewest(database: &impl Database) {
    let store = database.open();
    let limits = SlotLimits { of_all: 3, of_namespace: 0 };
    let mut busy = fill(&*store, "busy", 9, limits).await.into_iter();
    let calm = fill(&*store, "calm", 2, limits).await;
    let other = fill(&*store, "other", 1, limits).await;
    let first = grant(&*store, limits).await;
    assert_eq!(whose(&first), ["busy", "calm", "other"], "each has one, oldest first");
    assert_eq!(first[1].run_id, calm[0]);
    end(&*store, &busy.next().unwrap()).await;
    assert_eq!(whose(&grant(&*store, limits).await), ["busy"], "it has none, the others one");
    end(&*store, &other[0]).await;
    let next = grant(&*store, limits).await;
    assert_eq!(whose(&next), ["busy"], "both that wait have one: the oldest run");
    end(&*store, &calm[0]).await;
    assert_eq!(grant(&*store, limits).await[0].run_id, calm[1], "it has none, the other two");
    end(&*store, &calm[1]).await;
    assert_eq!(whose(&grant(&*store, limits).await), ["busy"], "nobody else waits");
}

pub async fn a_namespace_has_no_more_slots_than_its_share(database: &impl Database) {
    let store = database.open();
    let limits = SlotLimits { of_all: 0, of_namespace: 2 };
    let busy = fill(&*store, "busy", 5, limits).await;
    fill(&*store, "calm", 1, limits).await;
    let component = ComponentRef::agent("calm", "helper");
    assert_eq!(whose(&store.grant(Some(&component), limits).await.unwrap()), ["calm"]);
    let granted: Vec<RunId> = grant(&*store, limits).await.into_iter().map(|run| run.run_id).collect();
    assert_eq!(granted, busy[..2]);
    assert!(grant(&*store, limits).await.is_empty());
    end(&*store, &busy[0]).await;
    let component = ComponentRef::agent("busy", "helper");
    assert_eq!(store.grant(Some(&component), limits).await.unwrap()[0].run_id, busy[2]);
    // Both limits at once.
    let both = SlotLimits { of_all: 4, of_namespace: 3 };
    fill(&*store, "third", 5, both).await;
    assert_eq!(whose(&grant(&*store, both).await), ["third"], "three are taken");
}

pub async fn a_claim_does_not_overtake_a_namespace_that_has_less(database: &impl Database) {
    let store = database.open();
    let limits = SlotLimits { of_all: 3, of_namespace: 2 };
    let claimed = |namespace: &str, number| {
        let claim = Some(Claim::New { worker_id: worker("w"), registration: "w".into() });
        NewRun { claim, ..limited(namespace, number, limits) }
    };
    for number in 0..2 {
        assert!(accepted(&*store, claimed("busy", number)).await.2.is_some());
    }
    assert!(accepted(&*store, claimed("busy", 2)).await.2.is_none(), "its share is used up");
    let calm = accepted(&*store, claimed("calm", 0)).await;
    assert!(calm.2.is_some(), "a namespace that waits for its own share holds nobody up");
    let waits = accepted(&*store, claimed("calm", 1)).await;
    assert!(waits.2.is_none(), "all are taken");
    end(&*store, &waits.0.run_id).await;
    assert!(grant(&*store, limits).await.is_empty());

    let store = database.open();
    let limits = SlotLimits { of_all: 4, of_namespace: 0 };
    fill(&*store, "poor", 1, limits).await;
    let claim = Some(Claim::New { worker_id: worker("w"), registration: "w".into() });
    let rich = NewRun { claim, ..limited("rich", 0, limits) };
    assert!(accepted(&*store, rich).await.2.is_none(), "another waits that has no more");
}

pub async fn a_long_line_hides_no_other(database: &impl Database) {
    let store = database.open();
    let limits = SlotLimits { of_all: 10, of_namespace: 0 };
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..1_100 {
        let store = store.clone();
        tasks.spawn(async move {
            accepted(&*store, limited("busy", number, limits)).await;
            accepted(&*store, run_in("crowd", number)).await;
        });
    }
    tasks.join_all().await;
    fill(&*store, "calm", 20, limits).await;
    let mut count: HashMap<&str, u32> = HashMap::new();
    let granted = grant(&*store, limits).await;
    whose(&granted).into_iter().for_each(|namespace| *count.entry(namespace).or_default() += 1);
    assert_eq!(count, HashMap::from([("busy", 5), ("calm", 5)]));
    let page = store.waiting(20).await.unwrap();
    let of = |namespace: &str| page.iter().filter(|run| run.component.namespace == namespace).count();
    assert_eq!((of("busy"), of("calm"), of("crowd")), (5, 5, 10), "all that can start, in turns");
}

pub async fn a_namespaces_files_are_bounded(database: &impl Database) {
    let store = database.open();
    let in_place = |namespace: &str, name: &str| BlobPlace {
        session_id: session(name),
        namespace: namespace.into(),
        max_bytes: 1_000,
    };
    store.put(&in_place("busy", "a"), vec![1; 400]).await.unwrap().unwrap();
    store.put(&in_place("busy", "b"), vec![1; 400]).await.unwrap().unwrap(); // each session has its own copy
    assert!(store.put(&in_place("busy", "c"), vec![2; 201]).await.unwrap().is_none());
    store.put(&in_place("busy", "a"), vec![1; 400]).await.unwrap().unwrap(); // it is there already
    store.put(&in_place("calm", "c"), vec![2; 201]).await.unwrap().unwrap(); // another's is not full
    store.put(&in_place("busy", "d"), vec![2; 200]).await.unwrap().unwrap(); // to the last byte

    let run_id = turn(&*store, "s").await;
    store.put(&place("s"), vec![3; 600]).await.unwrap().unwrap();
    let copy = |most| SessionFork {
        source: session("s"),
        principal: None,
        session_id: session("t"),
        run_prefix: format!("copy-{most}"),
        user_id: None,
        max_namespace_bytes: most,
        at_ms: now(),
    };
    assert_eq!(store.fork_session(copy(1_199)).await.unwrap(), SessionForkOutcome::NamespaceFull);
    assert_eq!(store.fork_session(copy(1_200)).await.unwrap(), SessionForkOutcome::Forked { runs: 1 });
    assert!(store.run(&run_id).await.unwrap().is_some());
}
