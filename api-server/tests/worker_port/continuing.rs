//! Runs that go on after their end, seen from their workers.

use cadre_api::domain::continuing::Continue;
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::RunId;
use cadre_protocol::journal::{Entry, Record};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::run::{RunEnd, RunFailure, RunStatus};
use cadre_protocol::worker::{Assignment, ServerFrame};
use futures::StreamExt as _;

use crate::support::*;

fn failed() -> Entry {
    let failure = RunFailure {
        error_type: "model_provider_error".into(),
        error_id: None,
        message: "down".into(),
        retryable: false,
    };
    let event = RunEvent::RunError { content: "down".into(), error_type: failure.error_type.clone(), error_id: None };
    Entry { at_ms: 2, event: Some(event), record: Some(Record::Finished(RunEnd::Error(failure))) }
}

fn message(role: Role, text: &str) -> Entry {
    Entry { at_ms: 1, event: None, record: Some(Record::Message(Message::text(role, text, 1))) }
}

/// A run that asks and fails: three entries.
async fn fail(rig: &Rig, worker: &mut Worker, session: Option<&str>) -> Assignment {
    rig.submit("helper", session).await;
    let assignment = worker.assignment().await;
    let entries = vec![started(), message(Role::User, "hello"), failed()];
    worker.append(&assignment.run_id, assignment.epoch, 0, entries).await;
    worker.acked(&assignment.run_id, 3).await;
    assignment
}

async fn go_on(rig: &Rig, run_id: &RunId, input: Option<&str>) -> cadre_api::domain::continuing::Continued {
    let wish = Continue { input: input.map(str::to_owned), ..Continue::default() };
    rig.service.continue_run(run_id, None, wish).await.unwrap()
}

#[tokio::test]
async fn a_run_that_failed_goes_on_with_the_worker_that_is_there() {
    for (worker, session) in [("pool", None), ("of-s", Some("s"))] {
        let rig = rig().await;
        let mut worker = rig.worker(worker).await;
        let first = fail(&rig, &mut worker, session).await;
        let run_id = first.run_id.clone();
        let continued = go_on(&rig, &run_id, Some("again")).await;
        assert_eq!((&continued.submitted.run.run_id, continued.after), (&run_id, Some(3)));
        let again = worker.assignment().await;
        assert_eq!((&again.run_id, again.attempt, again.progress.next_index), (&run_id, 2, 4));
        assert!(again.epoch > first.epoch, "the end was the last thing of its epoch");
        let said: Vec<_> = again.progress.messages.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(said, ["hello", "again"]);
        let live = rig.service.stream(&run_id, continued.after);
        worker.append(&run_id, first.epoch, 4, vec![completed("late")]).await;
        worker.fenced(&run_id).await;
        worker.append(&run_id, again.epoch, 4, vec![event(RunEvent::RunContinued {}), completed("good")]).await;
        worker.acked(&run_id, 6).await;
        rig.status(&run_id, RunStatus::Completed).await;
        let ids: Vec<u64> =
            live.collect::<Vec<_>>().await.iter().flat_map(|chunk| parse(&chunk.frames)).map(|(id, _)| id).collect();
        assert_eq!(ids, [4, 5], "who continues it sees what comes");
        let all: Vec<_> =
            rig.events(&run_id, None).await.into_iter().map(|(id, name)| format!("{id} {name}")).collect();
        assert_eq!(all, ["0 RunStarted", "2 RunError", "4 RunContinued", "5 RunCompleted"]);
        // The session goes on under the epoch that it has now.
        let next = rig.submit("helper", Some(again.session_id.as_str())).await.run.run_id;
        let assignment = worker.assignment().await;
        assert_eq!((&assignment.run_id, assignment.epoch), (&next, again.epoch));
        worker.finish(&assignment).await;
        rig.status(&next, RunStatus::Completed).await;
    }
}

#[tokio::test]
async fn who_reads_the_end_and_who_reads_on_are_not_confused() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    rig.submit("helper", Some("s")).await;
    let first = worker.assignment().await;
    let run_id = first.run_id.clone();
    // A reader that is slow to take the end keeps listening while another one begins.
    let mut slow = rig.service.stream(&run_id, None);
    worker.append(&run_id, first.epoch, 0, vec![started()]).await;
    assert_eq!(slow.next().await.unwrap().next_index, 1);
    worker.append(&run_id, first.epoch, 1, vec![failed()]).await;
    worker.acked(&run_id, 2).await;
    let continued = go_on(&rig, &run_id, None).await;
    let again = worker.assignment().await;
    let fresh = rig.service.stream(&run_id, continued.after);
    worker.append(&run_id, again.epoch, 2, vec![event(RunEvent::RunContinued {}), completed("good")]).await;
    worker.acked(&run_id, 4).await;
    let ids = async |stream: futures::stream::BoxStream<'static, cadre_store::rows::EventChunk>| {
        let chunks = tokio::time::timeout(PATIENCE, stream.collect::<Vec<_>>()).await.expect("the stream ends");
        chunks.iter().flat_map(|chunk| parse(&chunk.frames)).map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(ids(fresh).await, [2, 3]);
    assert_eq!(ids(slow).await, [1, 2, 3]);
}

#[tokio::test]
async fn a_worker_that_still_holds_the_old_end_gets_the_run_anew() {
    for given_up in [true, false] {
        let rig = rig().await;
        let mut worker = rig.worker("of-s").await;
        let first = fail(&rig, &mut worker, Some("s")).await;
        let run_id = first.run_id.clone();
        worker.vanish().await;
        if given_up {
            until("the worker is given up", || !rig.notes.lost.lock().unwrap().is_empty()).await;
        }
        go_on(&rig, &run_id, None).await;
        // It never heard that its last batch arrived.
        let mut worker = Worker::connect(&rig, "of-s", "first", vec![held(&first)]).await.unwrap();
        worker.append(&run_id, first.epoch, 0, vec![started(), message(Role::User, "hello"), failed()]).await;
        let again = worker.assignment().await;
        assert_eq!((&again.run_id, again.progress.next_index), (&run_id, 3));
        worker.append(&run_id, again.epoch, 3, vec![completed("good")]).await;
        worker.acked(&run_id, 4).await;
        rig.status(&run_id, RunStatus::Completed).await;
        assert_eq!(rig.events(&run_id, None).await.len(), 3);
    }
}

#[tokio::test]
async fn a_fork_is_a_run_of_its_session() {
    let rig = rig().await;
    let mut worker = rig.worker("of-s").await;
    rig.submit("helper", Some("s")).await;
    let first = worker.assignment().await;
    let entries = vec![started(), message(Role::User, "hello"), message(Role::Assistant, "hi"), completed("hi")];
    worker.append(&first.run_id, first.epoch, 0, entries).await;
    worker.acked(&first.run_id, 4).await;
    let waits = rig.submit("helper", Some("s")).await;
    let busy = worker.assignment().await;
    assert_eq!(busy.run_id, waits.run.run_id);
    let fork = go_on(&rig, &first.run_id, Some("more")).await;
    assert_eq!((fork.after, fork.submitted.waiting_on.as_ref()), (None, Some(&waits.run.run_id)));
    assert!(worker.has_none(|frame| matches!(frame, ServerFrame::Assign(_))).await, "one turn at a time");
    worker.finish(&busy).await;
    let assignment = worker.assignment().await;
    assert_eq!((&assignment.run_id, assignment.attempt), (&fork.submitted.run.run_id, 1));
    let said: Vec<_> = assignment.progress.messages.iter().map(|message| message.content.as_str()).collect();
    assert_eq!((said, assignment.history.len()), (vec!["hello", "hi", "more"], 0));
    worker.finish(&assignment).await;
    rig.status(&assignment.run_id, RunStatus::Completed).await;
}
