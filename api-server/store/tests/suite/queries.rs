//! Lists and counts.

use cadre_protocol::ids::ComponentRef;
use cadre_protocol::run::RunStatus;
use cadre_store::rows::{Ends, NewRun, Origin, Principal, RunFilter};

use super::Database;
use super::fixtures::*;

pub async fn lists_are_filtered_and_counted(database: &impl Database) {
    let store = database.open();
    let done = turn(&*store, "s").await;
    let waits = accept(&*store, "s").await;
    let (other, ..) = accepted(&*store, NewRun { principal: Principal("key:other".into()), ..new_run("t") }).await;
    let (of_other_agent, ..) = accepted(&*store, new_run_of("u", agent("other"))).await;
    let all = RunFilter { limit: 10, ..RunFilter::default() };
    let ids = async |filter: RunFilter| {
        let (rows, total) = store.list(filter).await.unwrap();
        (rows.into_iter().map(|row| row.run_id).collect::<Vec<_>>(), total)
    };
    let newest_first = vec![of_other_agent.run_id.clone(), other.run_id.clone(), waits.clone(), done.clone()];
    assert_eq!(ids(all.clone()).await, (newest_first, 4));
    let page = RunFilter { offset: 1, limit: 2, ..all.clone() };
    assert_eq!(ids(page).await, (vec![other.run_id.clone(), waits.clone()], 4));
    let mine = RunFilter { principal: Some(principal()), session_id: Some(session("s")), ..all.clone() };
    assert_eq!(ids(mine.clone()).await, (vec![waits.clone(), done.clone()], 2));
    assert_eq!(ids(RunFilter { status: Some(RunStatus::Completed), ..mine.clone() }).await, (vec![done.clone()], 1));
    assert_eq!(ids(RunFilter { ends: Ends::NoneYet, ..mine.clone() }).await, (vec![waits.clone()], 1));
    let ended_at = store.run(&done).await.unwrap().unwrap().finished_at_ms.unwrap();
    let since = async |at_ms| ids(RunFilter { ends: Ends::NoneBefore(at_ms), ..mine.clone() }).await;
    assert_eq!(since(ended_at).await, (vec![waits.clone(), done], 2));
    assert_eq!(since(ended_at + 1).await, (vec![waits], 1));
    let component = Some(ComponentRef::agent("default", "other"));
    assert_eq!(ids(RunFilter { component, ..all.clone() }).await, (vec![of_other_agent.run_id], 1));
    assert_eq!(ids(RunFilter { run_objects_only: true, ..all }).await, (vec![], 0));
}

pub async fn the_run_of_an_object_is_found(database: &impl Database) {
    let store = database.open();
    let origin = Origin::RunObject { uid: "u-1".into(), name: "nightly".into() };
    let (row, ..) = accepted(&*store, NewRun { origin: origin.clone(), ..new_run("s") }).await;
    let found = store.run_of_object("default", "u-1").await.unwrap().unwrap();
    assert_eq!((&found, &found.origin), (&row, &origin));
    assert_eq!(store.run_of_object("other", "u-1").await.unwrap(), None);
    let filter = RunFilter { run_objects_only: true, limit: 5, ..RunFilter::default() };
    assert_eq!(store.list(filter).await.unwrap(), (vec![row], 1));
}

pub async fn counts_follow_the_runs(database: &impl Database) {
    let store = database.open();
    assert_eq!(store.stats().await.unwrap(), cadre_store::rows::QueueStats::default());
    turn(&*store, "a").await;
    running(&*store, "b").await;
    let (oldest, ..) = accepted(&*store, new_run("c")).await;
    accept(&*store, "c").await;
    let cancelled = accept(&*store, "d").await;
    store.cancel(&cancelled, None, "", now()).await.unwrap();
    let stats = store.stats().await.unwrap();
    assert_eq!(store.waiting_count().await.unwrap(), stats.pending);
    assert_eq!((stats.pending, stats.running, stats.paused), (2, 1, 0));
    assert_eq!((stats.completed, stats.error, stats.cancelled), (1, 0, 1));
    assert_eq!(stats.oldest_pending_at_ms, Some(oldest.created_at_ms));
}

pub async fn loads_name_the_last_run(database: &impl Database) {
    let store = database.open();
    turn(&*store, "a").await;
    let last = turn(&*store, "b").await;
    running(&*store, "c").await;
    accepted(&*store, new_run_of("d", agent("zeta"))).await;
    let loads = store.agent_loads().await.unwrap();
    assert_eq!(loads.len(), 2);
    assert_eq!((loads[0].name.as_str(), loads[0].active_runs, loads[0].queued_runs), ("helper", 1, 0));
    assert_eq!(loads[0].last_run, Some((last.to_string(), RunStatus::Completed)));
    assert_eq!((loads[1].name.as_str(), loads[1].queued_runs, &loads[1].last_run), ("zeta", 1, &None));
}

pub async fn a_detail_has_all(database: &impl Database) {
    let store = database.open();
    let run_id = turn(&*store, "s").await;
    let detail = store.detail(&run_id, None).await.unwrap().unwrap();
    assert_eq!((detail.messages.len(), detail.run.content), (2, Some("a".into())));
    assert_eq!(*detail.agent, agent("helper"));
    let first = accept(&*store, "s").await;
    let second = accept(&*store, "s").await;
    assert_eq!(store.detail(&first, None).await.unwrap().unwrap().waiting_on, None);
    assert_eq!(store.detail(&second, None).await.unwrap().unwrap().waiting_on, Some(first));
    assert!(store.detail(&cadre_protocol::ids::RunId::generate(), None).await.unwrap().is_none());
}
