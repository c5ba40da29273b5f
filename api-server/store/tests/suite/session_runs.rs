//! Runs of sessions, however many there are and however much they say.

use cadre_protocol::ids::ComponentRef;
use cadre_protocol::run::{RunInput, RunStatus};
use cadre_store::Store;
use cadre_store::rows::NewRun;
use cadre_store::rows::sessions::{RunPage, SessionRuns};

use super::Database;
use super::fixtures::*;

fn all(session_id: &str) -> SessionRuns {
    SessionRuns::of(session(session_id))
}

/// Accepts a run that is asked so many MiB.
async fn large(store: &dyn Store, session_id: &str, mib: usize) -> String {
    let input = RunInput { text: "x".repeat(mib << 20), ..RunInput::default() };
    accepted(store, NewRun { input, ..new_run(session_id) }).await.0.run_id.to_string()
}

fn ids(page: &RunPage) -> Vec<String> {
    page.runs.iter().map(|run| run.run_id.to_string()).collect()
}

pub async fn runs_of_a_session_are_filtered(database: &impl Database) {
    let store = database.open();
    let first = turn(&*store, "s").await;
    turn(&*store, "other").await;
    let second = turn(&*store, "s").await;
    let waits = accept(&*store, "s").await;
    let (first, second, waits) = (first.to_string(), second.to_string(), waits.to_string());
    let at_ms = store.session_runs(all("s")).await.unwrap().runs[1].created_at_ms;
    let filtered = [
        (all("s"), vec![&waits, &second, &first]),
        (SessionRuns { principal: Some(principal()), ..all("s") }, vec![&waits, &second, &first]),
        (SessionRuns { principal: Some(cadre_store::rows::Principal("key:other".into())), ..all("s") }, vec![]),
        (SessionRuns { component: Some(ComponentRef::agent("default", "other")), ..all("s") }, vec![]),
        (SessionRuns { statuses: vec![RunStatus::Pending, RunStatus::Error], ..all("s") }, vec![&waits]),
        (SessionRuns { from_ms: Some(at_ms), ..all("s") }, vec![&waits, &second]),
        (SessionRuns { to_ms: Some(at_ms), ..all("s") }, vec![&second, &first]),
        (all("none"), vec![]),
    ];
    for (of, expected) in filtered {
        let page = store.session_runs(of.clone()).await.unwrap();
        assert_eq!((ids(&page).iter().collect::<Vec<_>>(), page.before), (expected.clone(), None), "{of:?}");
        let details = store.session_details(of).await.unwrap();
        let found: Vec<_> = details.iter().map(|detail| detail.run.run_id.to_string()).collect();
        assert_eq!(found.iter().rev().collect::<Vec<_>>(), expected);
    }
    let details = store.session_details(all("s")).await.unwrap();
    assert_eq!(said(&details[0].messages), ["q", "a"]);
}

pub async fn large_runs_of_a_session_come_in_bounded_pieces(database: &impl Database) {
    let store = database.open();
    let mut newest_first = Vec::new();
    for _ in 0..6 {
        newest_first.insert(0, large(&*store, "s", 3).await);
    }
    let (mut of, mut found, mut pages) = (all("s"), Vec::new(), 0);
    loop {
        let page = store.session_runs(of.clone()).await.unwrap();
        assert_eq!(page.runs.len(), 1, "two would be too much");
        found.extend(ids(&page));
        pages += 1;
        match page.before {
            Some(before) => of.before = Some(before),
            None => break,
        }
    }
    assert_eq!((found, pages), (newest_first.clone(), 6));
    let details = store.session_details(all("s")).await.unwrap();
    let found: Vec<_> = details.iter().rev().map(|detail| detail.run.run_id.to_string()).collect();
    assert_eq!(found, newest_first[..5], "the newest that fit");
    let huge = large(&*store, "t", 17).await;
    let details = store.session_details(all("t")).await.unwrap();
    assert_eq!(details[0].run.run_id.as_str(), huge, "one is there in any case");
}

pub async fn a_session_sums_tokens_and_cost_of_all_its_runs(database: &impl Database) {
    let store = database.open();
    assert_eq!(store.session_metrics(&session("s")).await.unwrap(), Default::default());
    for cost in [Some(5), None, Some(7)] {
        let (run_id, lease) = running(&*store, "s").await;
        store.model_call(model_call(&run_id, now(), cost)).await.unwrap();
        complete(&*store, "s", &run_id, lease.epoch, 0).await;
    }
    let total = store.session_metrics(&session("s")).await.unwrap();
    assert_eq!((total.usage.input_tokens, total.usage.output_tokens), (300, 60));
    assert_eq!((total.cost_nano_usd, total.duration_ms), (Some(12), None));
}
