//! Acceptance.

use cadre_protocol::ids::{ComponentRef, Epoch, RunId};
use cadre_protocol::run::RunStatus;
use cadre_store::rows::{AcceptOutcome, Claim, IdempotencyKey, Lease, NewRun, Origin, Principal};
use serde_json::{Map, Value, json};

use super::Database;
use super::fixtures::*;

fn with_key(mut run: NewRun, key: &str, body: &str) -> NewRun {
    run.idempotency = Some(IdempotencyKey { key: key.into(), body_sha256: body.into() });
    run
}

pub async fn a_run_is_accepted_with_its_session(database: &impl Database) {
    let store = database.open();
    let run = new_run("s");
    let (row, waiting_on, started) = accepted(&*store, run.clone()).await;
    assert_eq!((row.status, waiting_on, started.is_none()), (RunStatus::Pending, None, true));
    assert_eq!(store.run(&run.run_id).await.unwrap(), Some(row.clone()));
    assert_eq!(
        (row.created_at_ms, row.timeout_seconds, row.metadata["ticket"].clone()),
        (run.at_ms, Some(60), json!(7))
    );
    let session = store.session(&run.session_id).await.unwrap().unwrap();
    assert_eq!((session.name.as_str(), session.principal), ("Hello there", principal()));
    assert_eq!((session.user_id.as_deref(), session.created_at_ms), (Some("ada"), run.at_ms));
}

pub async fn a_foreign_session_and_a_taken_id_are_refused(database: &impl Database) {
    let store = database.open();
    let run = new_run("s");
    accepted(&*store, run.clone()).await;
    let foreign = NewRun { principal: Principal("key:other".into()), ..new_run("s") };
    assert!(matches!(store.accept(foreign).await.unwrap(), AcceptOutcome::ForeignSession));
    let again = NewRun { run_id: run.run_id, ..new_run("t") };
    assert!(matches!(store.accept(again).await.unwrap(), AcceptOutcome::RunExists));
    assert_eq!(store.session(&session("t")).await.unwrap(), None);
}

pub async fn a_session_is_one_components(database: &impl Database) {
    let store = database.open();
    let lease = lease(&*store, "s", "w").await;
    accept(&*store, "s").await;
    let mut elsewhere = agent("helper");
    elsewhere.component = ComponentRef::agent("team", "helper");
    for other in [agent("other"), elsewhere] {
        // Not even the worker that has the session may take it.
        let run = NewRun { claim: Some(Claim::Held(lease.clone())), ..new_run_of("s", other) };
        let run_id = run.run_id.clone();
        match store.accept(run).await.unwrap() {
            AcceptOutcome::OtherComponent(component) => assert_eq!(component, ComponentRef::agent("default", "helper")),
            other => panic!("{other:?}"),
        }
        assert_eq!(store.run(&run_id).await.unwrap(), None);
    }
    let stranger = NewRun { principal: Principal("key:other".into()), ..new_run_of("s", agent("other")) };
    assert!(matches!(store.accept(stranger).await.unwrap(), AcceptOutcome::ForeignSession), "learns no agent's name");
    accept(&*store, "s").await;
}

pub async fn a_full_queue_refuses(database: &impl Database) {
    let store = database.open();
    for number in 0..2 {
        accepted(&*store, NewRun { max_queue_depth: 2, ..new_run(&format!("s{number}")) }).await;
    }
    let more = NewRun { max_queue_depth: 2, ..new_run("s3") };
    assert!(matches!(store.accept(more).await.unwrap(), AcceptOutcome::QueueFull));
    assert_eq!(store.session(&session("s3")).await.unwrap(), None);
    let lease = lease(&*store, "s3", "w").await;
    let claimed = NewRun { max_queue_depth: 2, claim: Some(Claim::Held(lease)), ..new_run("s3") };
    assert!(accepted(&*store, claimed).await.2.is_some(), "a run that starts at once does not wait");
}

pub async fn an_agents_own_queue_limit_counts_only_its_runs(database: &impl Database) {
    let store = database.open();
    let mut narrow = agent("narrow");
    narrow.max_queue_depth = Some(1);
    accepted(&*store, new_run("other")).await;
    accepted(&*store, new_run_of("s1", narrow.clone())).await;
    assert!(matches!(store.accept(new_run_of("s2", narrow)).await.unwrap(), AcceptOutcome::QueueFull));
    accepted(&*store, new_run("s3")).await;
}

pub async fn a_key_replays_its_run_even_when_the_queue_is_full(database: &impl Database) {
    let store = database.open();
    let first = with_key(new_run("s"), "k", "h");
    accepted(&*store, first.clone()).await;
    let again = NewRun { max_queue_depth: 1, refuse_if_busy: true, ..with_key(new_run("s"), "k", "h") };
    match store.accept(again).await.unwrap() {
        AcceptOutcome::Replayed(row) => assert_eq!(row.run_id, first.run_id),
        other => panic!("{other:?}"),
    }
    store.cancel(&first.run_id, None, "enough", now()).await.unwrap();
    match store.accept(with_key(new_run("elsewhere"), "k", "h")).await.unwrap() {
        AcceptOutcome::Replayed(row) => {
            assert_eq!((row.run_id, row.status), (first.run_id, RunStatus::Cancelled), "with its current status");
        }
        other => panic!("{other:?}"),
    }
}

pub async fn a_key_with_another_body_or_component_conflicts(database: &impl Database) {
    let store = database.open();
    accepted(&*store, with_key(new_run("s"), "k", "h")).await;
    let body = with_key(new_run("s"), "k", "other");
    assert!(matches!(store.accept(body).await.unwrap(), AcceptOutcome::IdempotencyConflict));
    let component = with_key(new_run_of("s", agent("other")), "k", "h");
    assert!(matches!(store.accept(component).await.unwrap(), AcceptOutcome::IdempotencyConflict));
}

pub async fn keys_of_others_and_of_run_objects_are_apart(database: &impl Database) {
    let store = database.open();
    accepted(&*store, with_key(new_run("s"), "k", "h")).await;
    let other = NewRun { principal: Principal("key:other".into()), ..with_key(new_run("t"), "k", "h") };
    accepted(&*store, other).await;
    let origin = Origin::RunObject { uid: "k".into(), name: "nightly".into() };
    accepted(&*store, NewRun { origin, ..with_key(new_run("s"), "k", "h") }).await;
    let origin = Origin::RunObject { uid: "l".into(), name: "nightly".into() };
    let mut elsewhere = agent("helper");
    elsewhere.component = ComponentRef::agent("team", "helper");
    accepted(&*store, NewRun { origin, ..with_key(new_run_of("u", elsewhere), "k", "h") }).await;
}

pub async fn a_good_claim_starts_the_run_in_the_same_commit(database: &impl Database) {
    let store = database.open();
    let lease = lease(&*store, "s", "w").await;
    let (row, _, started) = accepted(&*store, NewRun { claim: Some(Claim::Held(lease.clone())), ..new_run("s") }).await;
    let started = started.unwrap();
    assert_eq!((row.status, row.attempt, row.started_at_ms), (RunStatus::Running, 1, Some(row.created_at_ms)));
    assert_eq!((&started.run, started.epoch, started.first), (&row, lease.epoch, true));
    assert!(started.history.is_empty() && started.progress.messages.is_empty());
    complete(&*store, "s", &row.run_id, lease.epoch, 0).await;
    let (_, _, started) = accepted(&*store, NewRun { claim: Some(Claim::Held(lease)), ..new_run("s") }).await;
    assert_eq!(started.unwrap().history.len(), 2, "the turn before");
}

pub async fn a_bad_claim_leaves_it_waiting(database: &impl Database) {
    let store = database.open();
    let good = lease(&*store, "s", "w").await;
    let stale = Lease { epoch: Epoch(good.epoch.0 + 1), ..good.clone() };
    let (row, _, started) = accepted(&*store, NewRun { claim: Some(Claim::Held(stale)), ..new_run("s") }).await;
    assert!(started.is_none() && row.status == RunStatus::Pending);
    let (row, waiting_on, started) = accepted(&*store, NewRun { claim: Some(Claim::Held(good)), ..new_run("s") }).await;
    assert!(started.is_none() && row.status == RunStatus::Pending && waiting_on.is_some(), "not the head");
}

pub async fn a_busy_session_can_be_refused(database: &impl Database) {
    let store = database.open();
    let (head, lease) = running(&*store, "s").await;
    accept(&*store, "s").await;
    let busy = NewRun { refuse_if_busy: true, ..new_run("s") };
    match store.accept(busy.clone()).await.unwrap() {
        AcceptOutcome::SessionBusy(run_id) => assert_eq!(run_id, head),
        other => panic!("{other:?}"),
    }
    let next = complete(&*store, "s", &head, lease.epoch, 0).await.next.unwrap();
    store.cancel(&next, None, "", now()).await.unwrap();
    accepted(&*store, busy).await;
}

pub async fn session_state_is_merged(database: &impl Database) {
    let store = database.open();
    let state = |value: Value| match value {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    let first = NewRun { session_state: state(json!({"a": 1, "b": {"x": 1}})), ..new_run("s") };
    accepted(&*store, first).await;
    let second = NewRun { session_state: state(json!({"b": 2, "c": 3})), ..new_run("s") };
    let run_id = accepted(&*store, second).await.0.run_id;
    let expected = state(json!({"a": 1, "b": 2, "c": 3}));
    assert_eq!(store.session(&session("s")).await.unwrap().unwrap().state, expected);
    assert_eq!(store.detail(&run_id, None).await.unwrap().unwrap().session_state, expected);
}

pub async fn the_same_key_at_the_same_time_makes_one_run(database: &impl Database) {
    let store = database.open();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (store, run) = (store.clone(), with_key(new_run(&format!("s{number}")), "k", "h"));
        tasks.spawn(async move {
            match store.accept(run).await.unwrap() {
                AcceptOutcome::Accepted { run, .. } => (true, run.run_id),
                AcceptOutcome::Replayed(run) => (false, run.run_id),
                other => panic!("{other:?}"),
            }
        });
    }
    let outcomes: Vec<(bool, RunId)> = tasks.join_all().await;
    assert_eq!(outcomes.iter().filter(|(accepted, _)| *accepted).count(), 1);
    assert!(outcomes.iter().all(|(_, run_id)| *run_id == outcomes[0].1));
}
