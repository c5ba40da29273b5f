//! Places of workers that a namespace has no more of (security rule 21).

use std::sync::atomic::Ordering;
use std::time::Duration;

use cadre_api::domain::Limits;
use cadre_protocol::ids::SessionId;
use cadre_protocol::run::RunStatus;

use crate::support::*;

/// Without sweeps by time.
fn patient() -> Limits {
    Limits { sweep_every: PATIENCE * 100, unused_wait: PATIENCE * 100, ..limits() }
}

async fn waits_for(rig: &Rig, run_id: &cadre_protocol::ids::RunId) -> Option<String> {
    let run = rig.service.run(run_id, None).await.unwrap();
    rig.service.waits_for(&run).await.unwrap()
}

#[tokio::test]
async fn a_run_without_a_place_waits_and_says_so_until_one_is_free() {
    let rig = rig_with(memory().await, patient()).await;
    rig.notes.places.store(1, Ordering::Release);
    let first = rig.submit("helper", Some("one")).await.run.run_id;
    let mut worker = rig.worker("of-one").await;
    let assignment = worker.assignment().await;
    let second = rig.submit("helper", Some("two")).await.run.run_id;
    assert_eq!(waits_for(&rig, &second).await.as_deref(), Some("a sandbox: none is left"));
    assert_eq!(waits_for(&rig, &first).await, None);
    assert_eq!(rig.service.run(&second, None).await.unwrap().status, RunStatus::Pending, "that is no error");
    // The session that has nothing to do makes room, although it is still warm.
    worker.finish(&assignment).await;
    let third = rig.submit("helper", Some("three")).await.run.run_id;
    let one = SessionId::new("one").unwrap();
    until("the idle worker is retired", || rig.notes.retired.lock().unwrap().contains(&one)).await;
    let asked = |name: &str| rig.notes.wanted.lock().unwrap().iter().any(|it| it.session_id.as_str() == name);
    until("a worker is asked for", || asked("two") || asked("three")).await;
    assert!(asked("two") != asked("three"), "there is one place");
    let (next, other) = if asked("two") { (("two", &second), &third) } else { (("three", &third), &second) };
    let mut worker = rig.worker(&format!("of-{}", next.0)).await;
    assert_eq!(worker.assignment().await.run_id, *next.1);
    assert!(waits_for(&rig, other).await.is_some());
}

#[tokio::test]
async fn the_end_of_a_worker_frees_its_place() {
    let rig = rig_with(memory().await, Limits { obey_grace: Duration::from_millis(50), ..patient() }).await;
    rig.notes.places.store(1, Ordering::Release);
    rig.submit("helper", Some("one")).await;
    let second = rig.submit("helper", Some("two")).await.run.run_id;
    assert!(waits_for(&rig, &second).await.is_some());
    rig.notes.places.store(2, Ordering::Release);
    let worker_id = cadre_protocol::ids::WorkerId::new("default/of-another").unwrap();
    rig.notes.events.send(cadre_api::placement::PlacementEvent::Ended(worker_id)).unwrap();
    let asked = || rig.notes.wanted.lock().unwrap().iter().any(|it| it.session_id.as_str() == "two");
    until("a worker is asked for", asked).await;
    assert!(waits_for(&rig, &second).await.is_none());
}

#[tokio::test]
async fn a_run_that_waits_for_a_slot_says_so() {
    let rig = rig_with(memory().await, Limits { max_running: 1, ..patient() }).await;
    let mut worker = rig.worker("pool").await;
    let first = rig.submit("helper", None).await.run.run_id;
    let second = rig.submit("helper", None).await.run.run_id;
    assert_eq!(waits_for(&rig, &second).await.as_deref(), Some("a slot: as many sessions run as may at once"));
    assert_eq!(waits_for(&rig, &first).await, None);
    let assignment = worker.assignment().await;
    worker.finish(&assignment).await;
    assert_eq!(worker.assignment().await.run_id, second);
}
