//! A run from acceptance to its end, and its stream.

use cadre_api::domain::{DomainError, Submit};
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::ComponentRef;
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::MAX_FRAME_BYTES;
use futures::StreamExt;

use crate::support::*;

#[tokio::test]
async fn a_run_goes_to_the_worker_that_is_there_and_ends() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let submitted = rig.submit("helper", None).await;
    let assignment = worker.assignment().await;
    assert_eq!((&assignment.run_id, assignment.attempt), (&submitted.run.run_id, 1));
    assert_eq!(assignment.agent.display_name, "Helper");
    worker.finish(&assignment).await;

    let detail = rig.service.wait_end(&submitted.run.run_id, PATIENCE).await.unwrap();
    assert_eq!(detail.run.status, RunStatus::Completed);
    assert_eq!(detail.run.content, Some("hi".into()));
    let names: Vec<_> = rig.events(&submitted.run.run_id, None).await;
    let names: Vec<_> = names.iter().map(|(id, name)| (*id, name.as_str())).collect();
    assert_eq!(names, [(0, "RunStarted"), (1, "RunContent"), (2, "RunCompleted")]);
    assert!(rig.notes.wanted.lock().unwrap().is_empty(), "no worker was asked for");
}

#[tokio::test]
async fn a_run_waits_for_the_worker_that_was_asked_for() {
    let rig = rig().await;
    let submitted = rig.submit("helper", Some("s1")).await;
    until("a worker is asked for", || !rig.notes.wanted.lock().unwrap().is_empty()).await;
    let mut stranger = rig.worker("of-s2").await;
    assert!(stranger.has_none(|frame| matches!(frame, cadre_protocol::worker::ServerFrame::Assign(_))).await);
    let mut worker = rig.worker("of-s1").await;
    let assignment = worker.assignment().await;
    assert_eq!(assignment.run_id, submitted.run.run_id);
    worker.finish(&assignment).await;
    rig.status(&submitted.run.run_id, RunStatus::Completed).await;

    // The next turn goes to the warm worker at once, under the same epoch, started by its acceptance.
    let next = rig.submit("helper", Some("s1")).await;
    assert_eq!(next.run.status, RunStatus::Running);
    let second = worker.assignment().await;
    assert_eq!((second.run_id, second.epoch), (next.run.run_id, assignment.epoch));
}

#[tokio::test]
async fn a_stream_has_every_event_once_whenever_it_begins() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    let mut readers = Vec::new();
    for round in 0..40_u64 {
        if round % 4 == 0 {
            let (service, run_id) = (rig.service.clone(), run_id.clone());
            let after = round.checked_sub(3);
            let stream = service.stream(&run_id, after);
            let read = tokio::spawn(async move { stream.collect::<Vec<_>>().await });
            readers.push((after.map_or(0, |after| after + 1), read));
        }
        let entries = vec![event(RunEvent::text(round.to_string()))];
        worker.append(&run_id, assignment.epoch, round, entries).await;
        worker.acked(&run_id, round + 1).await;
    }
    worker.append(&run_id, assignment.epoch, 40, vec![completed("done")]).await;
    for (first, reader) in readers {
        let chunks = tokio::time::timeout(PATIENCE, reader).await.unwrap().unwrap();
        let ids: Vec<u64> = chunks.iter().flat_map(|chunk| parse(&chunk.frames)).map(|(id, _)| id).collect();
        assert_eq!(ids, (first..=40).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_reader_that_sleeps_delays_nobody_and_misses_nothing() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    let mut sleeper = rig.service.stream(&run_id, None);
    worker.append(&run_id, assignment.epoch, 0, vec![started()]).await;
    let first = sleeper.next().await.unwrap();
    assert_eq!(first.next_index, 1);
    // More than any buffer holds.
    for index in 1..=300 {
        worker.append(&run_id, assignment.epoch, index, vec![event(RunEvent::text("x"))]).await;
        worker.acked(&run_id, index + 1).await;
    }
    worker.append(&run_id, assignment.epoch, 301, vec![completed("done")]).await;
    worker.acked(&run_id, 302).await;
    let rest: Vec<_> = tokio::time::timeout(PATIENCE, sleeper.collect::<Vec<_>>()).await.unwrap();
    let ids: Vec<u64> = rest.iter().flat_map(|chunk| parse(&chunk.frames)).map(|(id, _)| id).collect();
    assert_eq!(ids, (1..=301).collect::<Vec<_>>());
}

#[tokio::test]
async fn batches_that_come_together_are_acknowledged_in_order() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    for index in 0..200 {
        worker.append(&run_id, assignment.epoch, index, vec![event(RunEvent::text("x"))]).await;
    }
    worker.append(&run_id, assignment.epoch, 200, vec![completed("done")]).await;
    worker.acked(&run_id, 201).await;
    assert_eq!(rig.events(&run_id, None).await.len(), 201);
}

#[tokio::test]
async fn agents_that_can_not_run_are_refused() {
    let rig = rig().await;
    let absent = rig.service.submit(submit("absent", None)).await.unwrap_err();
    assert!(matches!(absent, DomainError::AgentNotFound(_)), "{absent}");
    let broken = rig.service.submit(submit("broken", None)).await.unwrap_err();
    assert_eq!(broken.to_string(), "agent broken is not ready: Model \"absent\" does not exist in this namespace");
}

#[tokio::test]
async fn an_agent_that_comes_while_a_submission_waits_is_found() {
    let limits = cadre_api::domain::Limits { agent_wait: PATIENCE, ..limits() };
    let rig = rig_with(memory().await, limits).await;
    let late = "apiVersion: cadre.dev/v1alpha1\nkind: Agent\nmetadata: {name: late}\nspec: {modelRef: {name: echo}}\n";
    let (submitted, ()) = tokio::join!(rig.service.submit(submit("late", None)), async {
        std::fs::write(rig.folder.path().join("late.yaml"), late).unwrap();
        rig.catalog.reload().unwrap();
    });
    assert_eq!(submitted.unwrap().run.component.name, "late");
}

#[tokio::test]
async fn a_run_that_no_worker_can_be_told_of_ends_and_leaves_the_connection() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let long = "x".repeat(MAX_FRAME_BYTES);
    let submit = Submit::text(ComponentRef::agent("default", "helper"), principal(), &long);
    let run_id = rig.service.submit(submit).await.unwrap().run.run_id;
    rig.status(&run_id, RunStatus::Error).await;
    let failure = rig.service.run(&run_id, None).await.unwrap().failure.unwrap();
    assert_eq!(failure.error_type, "limit_exceeded");
    rig.submit("helper", None).await;
    let assignment = worker.assignment().await;
    assert_eq!(assignment.input.text, "hello");
}
