//! Workers that break off, come back, are replaced, and write too late.

use cadre_api::placement::PlacementEvent;
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::Epoch;
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::{ServerFrame, WorkerFrame};

use crate::support::*;

#[tokio::test]
async fn a_worker_that_comes_back_goes_on() {
    let rig = rig_with(memory().await, patient()).await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    worker.append(&run_id, assignment.epoch, 0, vec![started()]).await;
    worker.vanish().await;

    let mut worker = Worker::connect(&rig, "pool", "first", vec![held(&assignment)]).await.unwrap();
    // The batch may or may not have arrived: it is sent again and applied once.
    worker.append(&run_id, assignment.epoch, 0, vec![started(), event(RunEvent::text("hi")), completed("hi")]).await;
    worker.acked(&run_id, 3).await;
    assert_eq!(rig.events(&run_id, None).await.len(), 3);
    assert_eq!(rig.service.run(&run_id, None).await.unwrap().attempt, 1);
    assert!(rig.notes.lost.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_assignment_that_did_not_arrive_is_sent_again() {
    let rig = rig_with(memory().await, patient()).await;
    let mut worker = rig.worker("pool").await;
    rig.submit("helper", None).await;
    let assignment = worker.assignment().await;
    worker.vanish().await;
    let mut worker = Worker::connect(&rig, "pool", "first", Vec::new()).await.unwrap();
    let again = worker.assignment().await;
    assert_eq!((&again.run_id, again.epoch, again.attempt), (&assignment.run_id, assignment.epoch, 1));
    worker.finish(&again).await;
}

#[tokio::test]
async fn a_last_batch_whose_acknowledgement_was_lost_is_acknowledged_again() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    worker.finish(&assignment).await;
    worker.vanish().await;
    let mut worker = Worker::connect(&rig, "pool", "first", vec![held(&assignment)]).await.unwrap();
    worker.append(&run_id, assignment.epoch, 0, vec![started(), event(RunEvent::text("hi")), completed("hi")]).await;
    worker.acked(&run_id, 3).await;
}

#[tokio::test]
async fn another_worker_continues_with_the_next_epoch_and_the_old_one_is_fenced() {
    let rig = rig().await;
    let mut first = rig.worker("one").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = first.assignment().await;
    first.append(&run_id, assignment.epoch, 0, vec![started(), event(RunEvent::text("a"))]).await;
    first.acked(&run_id, 2).await;
    first.vanish().await;
    let mut second = rig.worker("two").await;
    let again = second.assignment().await;
    assert_eq!((&again.run_id, again.attempt, again.progress.next_index), (&run_id, 2, 2));
    assert!(again.epoch > assignment.epoch);

    let mut late = Worker::connect(&rig, "one", "first", vec![held(&assignment)]).await.unwrap();
    late.fenced(&run_id).await;
    late.append(&run_id, assignment.epoch, 2, vec![completed("stale")]).await;
    late.fenced(&run_id).await;
    // Nor does knowing the new epoch help.
    late.append(&run_id, again.epoch, 2, vec![completed("stale")]).await;
    late.fenced(&run_id).await;

    second.append(&run_id, again.epoch, 2, vec![completed("good")]).await;
    second.acked(&run_id, 3).await;
    let run = rig.service.run(&run_id, None).await.unwrap();
    assert_eq!((run.status, run.content), (RunStatus::Completed, Some("good".into())));
}

#[tokio::test]
async fn an_engine_that_starts_again_in_place_gets_a_new_epoch() {
    let rig = rig().await;
    rig.submit("helper", Some("s")).await;
    let mut first = rig.worker("of-s").await;
    let assignment = first.assignment().await;
    let mut second = Worker::connect(&rig, "of-s", "second", Vec::new()).await.unwrap();
    let again = second.assignment().await;
    assert!(again.epoch > assignment.epoch && again.run_id == assignment.run_id);
    second.finish(&again).await;
    first.append(&assignment.run_id, assignment.epoch, 0, vec![started()]).await;
    first.fenced(&assignment.run_id).await;
}

#[tokio::test]
async fn the_end_of_a_pod_is_noticed_at_once() {
    let limits = cadre_api::domain::Limits { reconnect_grace: PATIENCE * 100, ..limits() };
    let rig = rig_with(memory().await, limits).await;
    rig.submit("helper", Some("s")).await;
    let mut worker = rig.worker("of-s").await;
    let assignment = worker.assignment().await;
    let worker_id = worker.worker_id.clone();
    worker.vanish().await;
    rig.notes.events.send(PlacementEvent::Ended(worker_id)).unwrap();
    until("another worker is asked for", || rig.notes.wanted.lock().unwrap().len() >= 2).await;
    let mut worker = Worker::connect(&rig, "of-s", "second", Vec::new()).await.unwrap();
    assert!(worker.assignment().await.epoch > assignment.epoch);
}

#[tokio::test]
async fn a_worker_that_drains_is_not_waited_for() {
    let limits = cadre_api::domain::Limits { reconnect_grace: PATIENCE * 100, ..limits() };
    let rig = rig_with(memory().await, limits).await;
    let mut leaving = rig.worker("one").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    leaving.assignment().await;
    leaving.send(WorkerFrame::Draining {}).await;
    assert!(leaving.has_none(|_| false).await);
    let other = rig.submit("helper", None).await.run.run_id;
    let mut next = rig.worker("two").await;
    assert_eq!(next.assignment().await.run_id, other, "a draining worker gets nothing new");
    leaving.vanish().await;
    assert_eq!(next.assignment().await.run_id, run_id);
}

#[tokio::test]
async fn a_server_that_starts_again_takes_up_what_it_had() {
    let store = memory().await;
    let (kept, lost) = {
        let rig = rig_with(store.clone(), limits()).await;
        let mut worker = rig.worker("pool").await;
        let kept = rig.submit("helper", None).await;
        let assignment = worker.assignment().await;
        rig.service.stop().await;
        (assignment, kept)
    };
    let rig = rig_with(store, limits()).await;
    let mut worker = Worker::connect(&rig, "pool", "second", Vec::new()).await.unwrap();
    let again = worker.assignment().await;
    assert_eq!(again.run_id, lost.run.run_id);
    assert!(again.epoch > kept.epoch);
    worker.finish(&again).await;
}

#[tokio::test]
async fn a_worker_that_outlives_the_server_keeps_its_run() {
    let store = memory().await;
    let assignment = {
        let rig = rig_with(store.clone(), limits()).await;
        let mut worker = rig.worker("of-s").await;
        rig.submit("helper", Some("s")).await;
        let assignment = worker.assignment().await;
        worker.append(&assignment.run_id, assignment.epoch, 0, vec![started()]).await;
        worker.acked(&assignment.run_id, 1).await;
        rig.service.stop().await;
        assignment
    };
    let limits = cadre_api::domain::Limits { sweep_every: PATIENCE, ..limits() };
    let rig = rig_with(store, limits).await;
    // This placement's workers do not survive, so its recovery may have taken the lease: then the run comes again.
    let mut worker = Worker::connect(&rig, "of-s", "first", vec![held(&assignment)]).await.unwrap();
    worker.append(&assignment.run_id, assignment.epoch, 1, vec![completed("ok")]).await;
    let fenced = worker
        .expect("an answer", |frame| match frame {
            ServerFrame::Ack { next_index: 2, .. } => Some(false),
            ServerFrame::Fenced { .. } => Some(true),
            _ => None,
        })
        .await;
    if fenced {
        let again = worker.assignment().await;
        assert!(again.epoch > assignment.epoch);
        worker.append(&again.run_id, again.epoch, 1, vec![completed("ok")]).await;
    }
    rig.status(&assignment.run_id, RunStatus::Completed).await;
}

#[tokio::test]
async fn nobody_writes_under_an_epoch_that_was_never_given() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    worker.append(&run_id, Epoch(assignment.epoch.0 + 7), 0, vec![started()]).await;
    worker.fenced(&run_id).await;
    worker.finish(&assignment).await;
}

#[tokio::test]
async fn idle_workers_that_outlive_the_server_are_retired() {
    let store = memory().await;
    let sessions: Vec<String> = (0..6).map(|number| format!("s{number}")).collect();
    {
        let rig = replica(store.clone(), limits()).await;
        for session in &sessions {
            let mut worker = rig.worker(&format!("of-{session}")).await;
            rig.submit("helper", Some(session)).await;
            let assignment = worker.assignment().await;
            worker.finish(&assignment).await;
        }
        rig.service.stop().await;
    }
    let rig = replica(store, limits()).await;
    let mut workers = Vec::new();
    for (number, session) in sessions.iter().enumerate() {
        // Some dial twice, because the server is slow to answer at its start.
        for _ in 0..=number % 2 {
            workers.push(Worker::connect(&rig, &format!("of-{session}"), "first", Vec::new()).await.unwrap());
        }
    }
    let all_are = || sessions.iter().all(|id| rig.notes.retired.lock().unwrap().iter().any(|one| one.as_str() == id));
    until("all are retired", all_are).await;
}

#[tokio::test]
async fn of_two_connections_of_a_worker_the_newer_counts_and_the_other_is_closed() {
    let rig = rig().await;
    let mut first = rig.worker("of-s").await;
    let second = rig.worker("of-s").await;
    assert!(first.next().await.is_none());
    // The newer one may be the dead one. The worker knows which it has, and dials again.
    second.vanish().await;
    let mut third = rig.worker("of-s").await;
    let run_id = rig.submit("helper", Some("s")).await.run.run_id;
    let assignment = third.assignment().await;
    assert_eq!(assignment.run_id, run_id);
    third.finish(&assignment).await;
}
