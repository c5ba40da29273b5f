//! Runs as jobs of a queue.

use cadre_protocol::agent::RetryPolicy;
use cadre_protocol::run::RunStatus;
use cadre_store::rows::jobs::{JobFilter, JobOrder};
use cadre_store::rows::{IdempotencyKey, NewRun, Principal};

use super::Database;
use super::fixtures::*;

pub async fn jobs_are_filtered_ordered_and_paged(database: &impl Database) {
    let store = database.open();
    let done = turn(&*store, "a").await;
    let waiting = accept(&*store, "b").await;
    let foreign = NewRun { principal: Principal("key:other".into()), user_id: None, ..new_run("c") };
    let foreign = accepted(&*store, foreign).await.0.run_id;
    let (running, _) = running(&*store, "d").await;
    let ids = async |filter: JobFilter| {
        let (rows, total) = store.jobs(filter).await.unwrap();
        (rows.into_iter().map(|row| row.run.run_id).collect::<Vec<_>>(), total)
    };
    let all = JobFilter { limit: 10, ..JobFilter::default() };
    let newest = vec![running.clone(), foreign.clone(), waiting.clone(), done.clone()];
    assert_eq!(ids(all.clone()).await, (newest, 4));
    let page = JobFilter { ascending: true, offset: 1, limit: 2, ..JobFilter::default() };
    assert_eq!(ids(page).await, (vec![waiting.clone(), foreign.clone()], 4));
    let statuses = vec![RunStatus::Pending, RunStatus::Completed, RunStatus::Error];
    let filter = JobFilter { statuses, ..all.clone() };
    assert_eq!(ids(filter).await, (vec![foreign.clone(), waiting.clone(), done.clone()], 3));
    let session_ids = vec![session("a"), session("d"), session("none")];
    assert_eq!(ids(JobFilter { session_ids, ..all.clone() }).await, (vec![running, done.clone()], 2));
    assert_eq!(ids(JobFilter { user_id: Some("ada".into()), ..all.clone() }).await.1, 3);
    assert_eq!(ids(JobFilter { statuses: vec![RunStatus::Paused], ..all.clone() }).await, (vec![], 0));
    store.cancel(&waiting, None, "x", now()).await.unwrap();
    let changed = ids(JobFilter { order: JobOrder::Updated, ..all }).await.0;
    assert_eq!((changed.first(), changed.last()), (Some(&waiting), Some(&done)));
}

pub async fn a_job_shows_its_place_its_worker_and_its_key(database: &impl Database) {
    let store = database.open();
    let mut retrying = agent("helper");
    retrying.retry = RetryPolicy { retries: 2, delay_seconds: 0, exponential: false };
    let key = IdempotencyKey { key: "k".into(), body_sha256: "h".into() };
    let first = NewRun { idempotency: Some(key), ..new_run_of("s", retrying) };
    let first = accepted(&*store, first).await.0.run_id;
    let second = accept(&*store, "s").await;
    let lease = lease(&*store, "s", "w").await;
    store.start(&first, &lease, now()).await.unwrap().unwrap();
    let job = store.job(&first).await.unwrap().unwrap();
    assert_eq!((job.seq, job.max_attempts, job.idempotency_key.as_deref()), (1, 3, Some("k")));
    assert_eq!((job.run.status, job.lease.map(|(worker, _)| worker)), (RunStatus::Running, Some(worker("w"))));
    let job = store.job(&second).await.unwrap().unwrap();
    assert_eq!((job.seq, job.max_attempts, job.idempotency_key, job.lease), (2, 1, None, None));
    complete(&*store, "s", &first, lease.epoch, 0).await;
    assert_eq!(store.job(&first).await.unwrap().unwrap().lease, None, "nobody has it any more");
    assert_eq!(store.job(&"none".parse().unwrap()).await.unwrap(), None);
}
