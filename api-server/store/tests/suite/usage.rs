//! What happened by day.

use cadre_protocol::ids::RunId;
use cadre_store::Store;
use cadre_store::branches::{Fork, SessionFork, SessionForkOutcome};
use cadre_store::rows::sessions::SessionEdit;
use cadre_store::rows::upkeep::{DayUsage, ModelUsage, RefreshState, UsageFilter};
use cadre_store::rows::{AcceptOutcome, NewRun, Principal};

use super::Database;
use super::fixtures::*;

const DAY_MS: u64 = 86_400_000;
/// A day before all other times of the tests.
const DAY: u64 = EPOCH_MS / DAY_MS - 100;

async fn run_at(store: &dyn Store, session_id: &str, user: Option<&str>, at_ms: u64) -> RunId {
    let run = NewRun { at_ms, user_id: user.map(str::to_owned), ..new_run(session_id) };
    accepted(store, run).await.0.run_id
}

async fn call_at(store: &dyn Store, run_id: &RunId, model_id: &str, at_ms: u64) {
    let mut call = model_call(run_id, at_ms, Some(5));
    call.reply.model_id = model_id.into();
    store.model_call(call).await.unwrap();
}

/// Two days of two users and nobody.
async fn history(store: &dyn Store) {
    let at = DAY * DAY_MS;
    let first = run_at(store, "a", Some("ada"), at + 10).await;
    call_at(store, &first, "m-1", at + 20).await;
    call_at(store, &first, "m-1", at + 30).await;
    call_at(store, &first, "m-2", at + 30).await;
    let second = run_at(store, "a", Some("ada"), at + 40).await;
    call_at(store, &second, "m-1", at + 50).await;
    run_at(store, "b", None, at + DAY_MS - 1).await;
    // It began the day before.
    run_at(store, "a", Some("bob"), at + DAY_MS).await;
    call_at(store, &second, "m-1", at + DAY_MS + 1).await;
    let other = NewRun { principal: Principal("key:other".into()), at_ms: at + DAY_MS + 2, ..new_run("c") };
    accepted(store, other).await;
    // A write that somebody waits for comes after all lazy ones.
    store.edit(&session("a"), None, SessionEdit::default(), now()).await.unwrap();
}

fn short(days: &[DayUsage]) -> Vec<(u64, u64, u64, u64)> {
    days.iter().map(|day| (day.day - DAY, day.runs, day.sessions, day.users)).collect()
}

fn models(day: &DayUsage) -> Vec<(&str, u64, u64, u64)> {
    let mut models: Vec<_> =
        day.models.iter().map(|m| (m.model_id.as_str(), m.runs, m.calls, m.usage.input_tokens)).collect();
    models.sort_unstable();
    models
}

/// Days until the tests' own present.
fn past() -> UsageFilter {
    UsageFilter { from_day: Some(DAY), to_day: Some(DAY + 50), ..UsageFilter::default() }
}

async fn check(store: &dyn Store) {
    let days = store.usage(past(), now()).await.unwrap();
    assert_eq!(short(&days), [(0, 3, 2, 1), (1, 2, 1, 2)]);
    assert_eq!(models(&days[0]), [("m-1", 2, 3, 300), ("m-2", 1, 1, 100)]);
    assert_eq!(models(&days[1]), [("m-1", 0, 1, 100)], "the run was counted the day before");
    let ModelUsage { provider, priced_calls, cost_nano_usd, .. } = &days[1].models[0];
    assert_eq!((provider.as_str(), *priced_calls, *cost_nano_usd), ("Scripted", 1, 5));
    let of = async |filter: UsageFilter| short(&store.usage(filter, now()).await.unwrap());
    assert_eq!(of(UsageFilter { to_day: Some(DAY), ..past() }).await, [(0, 3, 2, 1)]);
    assert_eq!(of(UsageFilter { user_id: Some("ada".into()), ..past() }).await, [(0, 2, 1, 1), (1, 1, 1, 1)]);
    assert_eq!(of(UsageFilter { user_id: Some(String::new()), ..past() }).await, [(0, 1, 1, 0)]);
    assert_eq!(of(UsageFilter { principal: Some(principal()), ..past() }).await, [(0, 3, 2, 1), (1, 1, 0, 1)]);
}

pub async fn days_are_right_however_much_of_them_is_counted(database: &impl Database) {
    let store = database.open();
    history(&*store).await;
    check(&*store).await;
    let at = DAY * DAY_MS;
    for to_ms in [at + 15, at + 25, at + 30, at + 45, at + DAY_MS - 1, at + DAY_MS, at + 2 * DAY_MS] {
        while store.count_usage(to_ms, now()).await.unwrap() {}
        check(&*store).await;
        assert!(!store.count_usage(to_ms, now()).await.unwrap(), "there is nothing more");
    }
    check(&*store).await;
}

pub async fn counting_at_once_counts_once(database: &impl Database) {
    let store = database.open();
    history(&*store).await;
    let to_ms = (DAY + 10) * DAY_MS;
    let counts = (0..8).map(|_| async { while store.count_usage(to_ms, now()).await.unwrap() {} });
    futures::future::join_all(counts).await;
    check(&*store).await;
}

pub async fn what_was_counted_outlives_its_rows(database: &impl Database) {
    let store = database.open();
    let at = DAY * DAY_MS;
    let run_id = run_at(&*store, "a", Some("ada"), at).await;
    call_at(&*store, &run_id, "m-1", at).await;
    store.cancel(&run_id, None, "x", at + 1).await.unwrap();
    while store.count_usage(at + 10, now()).await.unwrap() {}
    let before = store.usage(past(), now()).await.unwrap();
    assert_eq!(store.delete(&[session("a")], None).await.unwrap(), [session("a")]);
    assert_eq!(store.usage(past(), now()).await.unwrap(), before);
    assert_eq!(short(&before), [(0, 1, 1, 1)]);
}

pub async fn one_refresh_at_a_time(database: &impl Database) {
    let store = database.open();
    assert_eq!(store.refresh_state().await.unwrap(), RefreshState::default());
    assert!(store.begin_refresh(100, 50).await.unwrap());
    assert!(!store.begin_refresh(110, 60).await.unwrap(), "it is under way");
    let begun = RefreshState { started_at_ms: Some(100), ..RefreshState::default() };
    assert_eq!(store.refresh_state().await.unwrap(), begun);
    assert!(store.begin_refresh(200, 150).await.unwrap(), "whoever began it is gone");
    store.end_refresh(210, Some("database_unavailable".into())).await.unwrap();
    let failed = RefreshState {
        started_at_ms: Some(200),
        finished_at_ms: Some(210),
        error: Some("database_unavailable".into()),
    };
    assert_eq!(store.refresh_state().await.unwrap(), failed);
    assert!(store.begin_refresh(220, 150).await.unwrap());
}

pub async fn copies_of_runs_are_not_counted(database: &impl Database) {
    let store = database.open();
    turn(&*store, "s").await;
    let copy = SessionFork {
        source: session("s"),
        principal: None,
        session_id: session("copy"),
        run_prefix: "copy".into(),
        user_id: None,
        max_namespace_bytes: 0,
        at_ms: now(),
    };
    assert_eq!(store.fork_session(copy).await.unwrap(), SessionForkOutcome::Forked { runs: 1 });
    // A run that begins with a copied conversation is a run all the same.
    accept(&*store, "copy").await;
    let fork = Fork { source: RunId::new("copy-1").unwrap(), keep: 2, of: 2, input: None, regenerate: None };
    assert!(matches!(store.fork(new_run("copy"), fork).await.unwrap(), Some(AcceptOutcome::Accepted { .. })));
    for counted in [false, true] {
        if counted {
            while store.count_usage(now(), now()).await.unwrap() {}
        }
        let days = store.usage(UsageFilter::default(), now()).await.unwrap();
        let sums = days.iter().fold((0, 0), |(runs, sessions), day| (runs + day.runs, sessions + day.sessions));
        assert_eq!(sums, (3, 2), "counted: {counted}");
    }
}
