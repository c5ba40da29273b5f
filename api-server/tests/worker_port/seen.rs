//! What is answered without a look into the record is what the record says.

use cadre_api::domain::hub::{Listener, Wants};
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::RunId;
use cadre_protocol::journal::{Entry, Record};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::tool::{ToolExecution, ToolMetrics};
use cadre_protocol::worker::Assignment;
use futures::StreamExt;
use serde_json::json;

use crate::support::*;

async fn begin(rig: &Rig, worker: &mut Worker, wants: Wants) -> (Assignment, Listener) {
    let (_, listener) = rig.service.submit_for(submit("helper", None), Some(wants)).await.unwrap();
    (worker.assignment().await, listener.unwrap())
}

fn record(record: Record) -> Entry {
    Entry { at_ms: 1, event: None, record: Some(record) }
}

fn message(id: &str, role: Role, content: &str) -> Entry {
    record(Record::Message(Message { id: id.to_owned(), ..Message::text(role, content, 1) }))
}

async fn ended(mut listener: Listener) -> Listener {
    tokio::time::timeout(PATIENCE, listener.ended.changed()).await.unwrap().unwrap();
    listener
}

async fn in_record(rig: &Rig, run_id: &RunId) -> String {
    format!("{:#?}", rig.service.detail(run_id, None).await.unwrap())
}

#[tokio::test]
async fn a_run_that_was_seen_whole_is_told_as_the_record_tells_it() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let (Assignment { run_id, epoch, .. }, listener) = begin(&rig, &mut worker, Wants::End).await;
    let tool = ToolExecution {
        tool_call_id: "call-1".to_owned(),
        tool_name: "shell".to_owned(),
        tool_args: json!({"command": "true", "n": 1.5}).as_object().unwrap().clone(),
        ..ToolExecution::default()
    };
    let metrics = Some(ToolMetrics { start_time: 1.25, end_time: 3.5, duration: 2.25 });
    let done = ToolExecution { result: Some("fine".to_owned()), metrics, ..tool.clone() };
    let refused = ToolExecution { tool_call_id: "call-2".to_owned(), ..done.clone() };
    let first =
        vec![started(), message("m1", Role::User, "hello"), record(Record::ToolStarted { tool, idempotent: true })];
    worker.append(&run_id, epoch, 0, first).await;
    worker.acked(&run_id, 3).await;
    let rest = vec![
        record(Record::ToolFinished { tool: done, effect: None, unknown_outcome: false }),
        record(Record::ToolFinished { tool: refused, effect: None, unknown_outcome: true }),
        message("m2", Role::Assistant, "hi"),
        completed("hi"),
    ];
    worker.append(&run_id, epoch, 3, rest).await;
    let seen = ended(listener).await.take_seen().expect("the run was seen whole");
    assert_eq!(seen.tools.len(), 2);
    assert_eq!(format!("{seen:#?}"), in_record(&rig, &run_id).await);
}

#[tokio::test]
async fn what_was_not_seen_whole_is_left_to_the_record() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    // A batch that comes twice.
    let (Assignment { run_id, epoch, .. }, listener) = begin(&rig, &mut worker, Wants::End).await;
    worker.append(&run_id, epoch, 0, vec![started()]).await;
    worker.acked(&run_id, 1).await;
    worker.append(&run_id, epoch, 0, vec![started(), completed("hi")]).await;
    assert!(ended(listener).await.take_seen().is_none());
    // A further attempt.
    let (Assignment { run_id, epoch, .. }, listener) = begin(&rig, &mut worker, Wants::End).await;
    worker.append(&run_id, epoch, 0, vec![started(), record(Record::Retry {}), completed("hi")]).await;
    assert!(ended(listener).await.take_seen().is_none());
    // Another end than a good one.
    let (Assignment { run_id, epoch, .. }, listener) = begin(&rig, &mut worker, Wants::End).await;
    worker.append(&run_id, epoch, 0, vec![started(), cancelled()]).await;
    assert!(ended(listener).await.take_seen().is_none());
    let detail = rig.service.wait_end(&run_id, PATIENCE).await.unwrap();
    assert_eq!(detail.run.cancellation_stage.as_deref(), Some("EXECUTING"));
}

#[tokio::test]
async fn a_reader_from_before_the_start_has_every_event_once() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let (Assignment { run_id, epoch, .. }, listener) = begin(&rig, &mut worker, Wants::Events).await;
    let stream = rig.service.stream_from_start(&run_id, listener);
    let reading = tokio::spawn(stream.collect::<Vec<_>>());
    worker.append(&run_id, epoch, 0, vec![started()]).await;
    worker.append(&run_id, epoch, 1, vec![event(RunEvent::text("a"))]).await;
    worker.append(&run_id, epoch, 2, vec![message("m", Role::Assistant, "a"), completed("a")]).await;
    let chunks = tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap();
    let frames: Vec<_> = chunks.iter().flat_map(|chunk| parse(&chunk.frames)).collect();
    assert_eq!(frames, rig.events(&run_id, None).await);
    assert_eq!(frames.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 3]);
}
