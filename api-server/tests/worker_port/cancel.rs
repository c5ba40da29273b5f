//! Cancel in every state, and deadlines.

use cadre_api::domain::{DomainError, Limits};
use cadre_protocol::ids::RunId;
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::ServerFrame;
use cadre_store::rows::Principal;

use crate::support::*;

#[tokio::test]
async fn a_run_that_waits_ends_at_once() {
    let rig = rig().await;
    let run_id = rig.submit("helper", Some("s")).await.run.run_id;
    let run = rig.service.cancel(&run_id, Some(&principal())).await.unwrap();
    assert_eq!(run.status, RunStatus::Cancelled);
    let events = rig.events(&run_id, None).await;
    assert_eq!(events.last().map(|(_, name)| name.as_str()), Some("RunCancelled"));
    // The worker that was asked for comes, gets nothing, and is sent away.
    let mut worker = rig.worker("of-s").await;
    assert!(worker.has_none(|frame| matches!(frame, ServerFrame::Assign(_))).await);
    until("it is retired", || !rig.notes.retired.lock().unwrap().is_empty()).await;
}

#[tokio::test]
async fn a_worker_is_told_and_obeys() {
    // At once: no sweep comes by.
    let rig = rig_with(memory().await, Limits { sweep_every: PATIENCE * 100, ..patient() }).await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    let run = rig.service.cancel(&run_id, None).await.unwrap();
    assert_eq!(run.status, RunStatus::Running);
    let epoch = worker
        .expect("a cancel", |frame| match frame {
            ServerFrame::Cancel { run_id: of, epoch, .. } if *of == run_id => Some(*epoch),
            _ => None,
        })
        .await;
    assert_eq!(epoch, assignment.epoch);
    worker.append(&run_id, epoch, 0, vec![cancelled()]).await;
    worker.acked(&run_id, 1).await;
    rig.status(&run_id, RunStatus::Cancelled).await;
}

#[tokio::test]
async fn a_worker_that_does_not_obey_is_fenced() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    rig.service.cancel(&run_id, None).await.unwrap();
    worker.fenced(&run_id).await;
    rig.status(&run_id, RunStatus::Cancelled).await;
    worker.append(&run_id, assignment.epoch, 0, vec![completed("late")]).await;
    worker.fenced(&run_id).await;
    assert_eq!(rig.service.run(&run_id, None).await.unwrap().status, RunStatus::Cancelled);
}

#[tokio::test]
async fn a_run_whose_worker_is_away_ends_at_once() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    worker.vanish().await;
    // The cancel may be faster than the news that the worker has gone; then the run ends a moment later.
    rig.service.cancel(&run_id, None).await.unwrap();
    rig.status(&run_id, RunStatus::Cancelled).await;
    let mut worker = Worker::connect(&rig, "pool", "first", vec![held(&assignment)]).await.unwrap();
    worker.append(&run_id, assignment.epoch, 0, vec![started()]).await;
    worker.fenced(&run_id).await;
}

#[tokio::test]
async fn an_ended_run_stays_as_it_is() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    worker.finish(&assignment).await;
    assert_eq!(rig.service.cancel(&run_id, None).await.unwrap().status, RunStatus::Completed);
}

#[tokio::test]
async fn strangers_can_not_cancel() {
    let rig = rig().await;
    let run_id = rig.submit("helper", Some("s")).await.run.run_id;
    let stranger = Principal("key:stranger".to_owned());
    let refused = rig.service.cancel(&run_id, Some(&stranger)).await.unwrap_err();
    assert!(matches!(refused, DomainError::RunNotFound(_)));
    let unknown = RunId::new("unknown").unwrap();
    assert!(rig.service.cancel(&unknown, None).await.is_err());
    assert_eq!(rig.service.run(&run_id, None).await.unwrap().status, RunStatus::Pending);
}

#[tokio::test]
async fn a_deadline_ends_a_run_that_does_not_end_itself() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let submit = cadre_api::domain::Submit { timeout_seconds: Some(5), ..submit("helper", None) };
    let run_id = rig.service.submit(submit).await.unwrap().run.run_id;
    let assignment = worker.assignment().await;
    assert!(assignment.deadline_ms.is_some());
    worker.fenced(&run_id).await;
    let run = rig.service.run(&run_id, None).await.unwrap();
    assert_eq!((run.status, run.failure.unwrap().error_type.as_str()), (RunStatus::Error, "timeout"));
    let events = rig.events(&run_id, None).await;
    assert_eq!(events.last().map(|(_, name)| name.as_str()), Some("RunError"));
    // The worker is good for the next run all the same.
    rig.submit("helper", None).await;
    worker.assignment().await;
}
