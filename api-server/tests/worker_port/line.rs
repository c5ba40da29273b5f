//! The line of a session, and slots.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cadre_api::domain::upkeep::Retention;
use cadre_api::domain::{DomainError, Limits, Submit};
use cadre_protocol::ids::SessionId;
use cadre_protocol::problem::ErrorCode;
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::ServerFrame;
use cadre_store::rows::{IdempotencyKey, Origin};

use crate::support::*;

fn is_assignment(frame: &ServerFrame) -> bool {
    matches!(frame, ServerFrame::Assign(_))
}

#[tokio::test]
async fn runs_of_a_session_go_one_after_the_other() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let first = rig.submit("helper", Some("s")).await;
    let second = rig.submit("helper", Some("s")).await;
    let third = rig.submit("helper", Some("s")).await;
    assert_eq!(first.waiting_on, None);
    assert_eq!(second.waiting_on.as_ref(), Some(&first.run.run_id));
    let one = worker.assignment().await;
    assert!(worker.has_none(is_assignment).await);
    // Another session does not wait for this one.
    let other = rig.submit("helper", Some("t")).await;
    let of_other = worker.assignment().await;
    assert_eq!(of_other.run_id, other.run.run_id);
    for (expected, assignment) in [(&first, Some(one)), (&second, None), (&third, None)] {
        let assignment = match assignment {
            Some(assignment) => assignment,
            None => worker.assignment().await,
        };
        assert_eq!(assignment.run_id, expected.run.run_id);
        worker.finish(&assignment).await;
    }
    rig.status(&third.run.run_id, RunStatus::Completed).await;
}

#[tokio::test]
async fn a_cancelled_run_makes_room_for_the_next_in_line() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let first = rig.submit("helper", Some("s")).await;
    let second = rig.submit("helper", Some("s")).await;
    let third = rig.submit("helper", Some("s")).await;
    let one = worker.assignment().await;
    rig.service.cancel(&second.run.run_id, None).await.unwrap();
    worker.finish(&one).await;
    assert_eq!(worker.assignment().await.run_id, third.run.run_id);
    assert_eq!(one.run_id, first.run.run_id);
}

#[tokio::test]
async fn an_agent_runs_no_more_sessions_than_it_says() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let first = rig.submit("narrow", None).await;
    let second = rig.submit("narrow", None).await;
    let third = rig.submit("narrow", None).await;
    let mut assignment = worker.assignment().await;
    assert_eq!(assignment.run_id, first.run.run_id);
    assert!(worker.has_none(is_assignment).await);
    assert_eq!(second.run.status, RunStatus::Pending);
    // Others are not held up.
    let other = rig.submit("helper", None).await;
    let of_other = worker.assignment().await;
    assert_eq!(of_other.run_id, other.run.run_id);
    for expected in [second, third] {
        worker.finish(&assignment).await;
        assignment = worker.assignment().await;
        assert_eq!(assignment.run_id, expected.run.run_id, "first come, first served");
    }
}

#[tokio::test]
async fn the_server_runs_no_more_sessions_than_it_may() {
    let limits = cadre_api::domain::Limits { max_running: 2, ..limits() };
    let rig = rig_with(memory().await, limits).await;
    let mut worker = rig.worker("pool").await;
    let mut runs = Vec::new();
    for _ in 0..6 {
        runs.push(rig.submit("helper", None).await.run.run_id);
    }
    let (one, two) = (worker.assignment().await, worker.assignment().await);
    assert!(worker.has_none(is_assignment).await);
    worker.finish(&two).await;
    let three = worker.assignment().await;
    assert!(worker.has_none(is_assignment).await);
    for assignment in [one, three] {
        worker.finish(&assignment).await;
    }
    for _ in 0..3 {
        let assignment = worker.assignment().await;
        worker.finish(&assignment).await;
    }
    for run_id in runs {
        rig.status(&run_id, RunStatus::Completed).await;
    }
}

#[tokio::test]
async fn a_warm_worker_is_retired_when_its_time_is_over() {
    let cool = "---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {name: cool}
spec: {modelRef: {name: echo}, sandbox: {warmSeconds: 0}}
";
    let rig = rig_of(&format!("{MANIFESTS}{cool}"), memory().await, limits()).await;
    rig.submit("cool", Some("s")).await;
    let mut worker = rig.worker("of-s").await;
    let assignment = worker.assignment().await;
    worker.finish(&assignment).await;
    until("its Sandbox is retired", || rig.notes.retired.lock().unwrap().len() == 1).await;
}

#[tokio::test]
async fn a_deleted_session_takes_its_sandbox_with_it() {
    let rig = rig().await;
    let session = SessionId::new("s").unwrap();
    let sessions = std::slice::from_ref(&session);
    rig.submit("helper", Some("s")).await;
    let mut worker = rig.worker("of-s").await;
    let assignment = worker.assignment().await;
    let delete = async || rig.service.delete_sessions(sessions, Some(&principal())).await;
    assert_eq!(delete().await.unwrap(), []);
    assert!(rig.notes.removed.lock().unwrap().is_empty(), "its run has not ended");
    worker.finish(&assignment).await;
    rig.status(&assignment.run_id, RunStatus::Completed).await;
    // A session whose sandbox stays must stay, or nobody would ever remove that.
    rig.notes.keeps.store(true, Ordering::Release);
    assert_eq!(delete().await.unwrap_err().code(), ErrorCode::ClusterUnavailable);
    assert!(rig.service.session(&session, None).await.is_ok());
    rig.notes.keeps.store(false, Ordering::Release);
    // The agent need not be there any more.
    std::fs::write(rig.folder.path().join("all.yaml"), "").unwrap();
    rig.catalog.reload().unwrap();
    assert_eq!(delete().await.unwrap(), sessions);
    assert_eq!(*rig.notes.removed.lock().unwrap(), sessions);
    assert!(rig.service.session(&session, None).await.is_err());
}

#[tokio::test]
async fn a_session_that_is_too_old_takes_its_sandbox_with_it() {
    let retention = Retention { runs: Some(Duration::ZERO), ..Retention::default() };
    let rig = rig_with(memory().await, Limits { retention, ..limits() }).await;
    rig.submit("helper", Some("s")).await;
    let mut worker = rig.worker("of-s").await;
    let assignment = worker.assignment().await;
    worker.finish(&assignment).await;
    rig.status(&assignment.run_id, RunStatus::Completed).await;
    rig.service.forget(rig.service.now_ms() + 1000).await.unwrap();
    assert_eq!(*rig.notes.removed.lock().unwrap(), [SessionId::new("s").unwrap()]);
}

#[tokio::test]
async fn no_agent_gets_anothers_worker() {
    let rig = rig().await;
    let mut worker = rig.worker("of-s").await;
    rig.submit("helper", Some("s")).await;
    let assignment = worker.assignment().await;
    worker.finish(&assignment).await;
    let refused = rig.service.submit(submit("narrow", Some("s"))).await;
    assert!(matches!(refused, Err(DomainError::OtherAgentsSession(of)) if of == "helper"));
    assert!(worker.has_none(is_assignment).await);
    // The worker is the session's as before.
    let next = rig.submit("helper", Some("s")).await.run.run_id;
    assert_eq!(worker.assignment().await.run_id, next);
}

#[tokio::test]
async fn a_key_names_its_run_although_the_agent_is_gone() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let key = IdempotencyKey { key: "k".to_owned(), body_sha256: "b".to_owned() };
    let object = Origin::RunObject { uid: "u".to_owned(), name: "nightly".to_owned() };
    for origin in [Origin::Http, object.clone()] {
        let wanted = Submit { idempotency: Some(key.clone()), origin, ..submit("helper", None) };
        rig.service.submit(wanted).await.unwrap();
        let assignment = worker.assignment().await;
        worker.finish(&assignment).await;
    }
    let other = MANIFESTS.replace("metadata: {name: helper}", "metadata: {name: another}");
    std::fs::write(rig.folder.path().join("all.yaml"), other).unwrap();
    rig.catalog.reload().unwrap();
    let new = rig.service.submit(submit("helper", None)).await;
    assert!(matches!(new, Err(DomainError::AgentNotFound(_))));
    for origin in [Origin::Http, object] {
        let wanted = Submit { idempotency: Some(key.clone()), origin: origin.clone(), ..submit("helper", None) };
        let again = rig.service.submit(wanted).await.unwrap();
        assert_eq!((again.replayed, again.run.status, again.run.origin), (true, RunStatus::Completed, origin));
    }
}
