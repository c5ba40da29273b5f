//! Models, tools and files over the link, and the limits of what a run may write.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cadre_api::domain::{NewFile, Submit};
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::{BlobDigest, Epoch, RunId};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::{ModelDelta, ModelErrorCategory, ModelRequest};
use cadre_protocol::run::RunStatus;
use cadre_protocol::worker::{Assignment, ServerFrame, WorkerFrame};

use crate::support::*;

fn request(model: &str, text: &str) -> Box<ModelRequest> {
    Box::new(ModelRequest {
        model: model.to_owned(),
        messages: vec![Message::text(Role::User, text, 0)],
        tools: Vec::new(),
        tool_choice: None,
        output_schema: None,
    })
}

pub fn ask(assignment: &Assignment, call: u64, model: &str) -> WorkerFrame {
    let Assignment { run_id, epoch, .. } = assignment;
    WorkerFrame::ModelCall { call, run_id: run_id.clone(), epoch: *epoch, request: request(model, "ping") }
}

#[tokio::test]
async fn a_model_answers_in_pieces_and_the_run_pays() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    worker.send(ask(&assignment, 1, "echo")).await;
    let mut text = String::new();
    let reply = loop {
        match worker.next().await.unwrap() {
            ServerFrame::ModelDelta { call: 1, delta: ModelDelta::Text(piece) } => text.push_str(&piece),
            ServerFrame::ModelReply { call: 1, reply } => break reply,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((text.as_str(), reply.message.content.as_str()), ("You said: ping", "You said: ping"));
    worker.finish(&assignment).await;
    let run = rig.service.run(&run_id, None).await.unwrap();
    assert_eq!(run.metrics.model_calls, 1);
    assert_eq!(run.metrics.usage.output_tokens, reply.usage.output_tokens);
    assert_eq!(run.metrics.cost_nano_usd, reply.cost_nano_usd);
    assert!(run.metrics.cost_nano_usd.is_some_and(|cost| cost > 0));
}

#[tokio::test]
async fn a_server_that_has_just_begun_does_not_say_that_a_model_is_gone() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    rig.submit("helper", None).await;
    let assignment = worker.assignment().await;
    rig.is_new.store(true, Ordering::Release);
    worker.send(ask(&assignment, 1, "echo")).await;
    // Its own Model is looked for, and another one is refused meanwhile.
    worker.send(ask(&assignment, 2, "other")).await;
    let failed = |frame: &ServerFrame| match frame {
        ServerFrame::ModelFailed { call, .. } => Some(*call),
        _ => None,
    };
    assert_eq!(worker.expect("a refusal", failed).await, 2);
    rig.is_new.store(false, Ordering::Release);
    let replied = |frame: &ServerFrame| matches!(frame, ServerFrame::ModelReply { call: 1, .. }).then_some(());
    worker.expect("its answer", replied).await;
}

#[tokio::test]
async fn only_the_runs_own_model_and_epoch_count() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    rig.submit("helper", None).await;
    let assignment = worker.assignment().await;
    worker.send(ask(&assignment, 1, "other")).await;
    let category = |frame: &ServerFrame| match frame {
        ServerFrame::ModelFailed { error, .. } => Some(error.category),
        _ => None,
    };
    assert_eq!(worker.expect("a refusal", category).await, ModelErrorCategory::Policy);
    let old = Assignment { epoch: Epoch(assignment.epoch.0 + 1), ..assignment.clone() };
    worker.send(ask(&old, 2, "echo")).await;
    worker.fenced(&assignment.run_id).await;
    assert_eq!(worker.expect("a refusal", category).await, ModelErrorCategory::Policy);
    let mut stranger = rig.worker("other").await;
    stranger.send(ask(&assignment, 1, "echo")).await;
    stranger.fenced(&assignment.run_id).await;
}

#[tokio::test]
async fn tools_that_the_agent_lacks_are_refused() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    rig.submit("helper", None).await;
    let Assignment { run_id, epoch, .. } = worker.assignment().await;
    let arguments = serde_json::json!({"url": "http://127.0.0.1:1/"}).as_object().unwrap().clone();
    let (tool_call_id, tool) = ("c".to_owned(), "http".to_owned());
    worker.send(WorkerFrame::ToolCall { call: 9, run_id, epoch, tool_call_id, tool, arguments }).await;
    let result = worker
        .expect("a result", |frame| match frame {
            ServerFrame::ToolResult { call: 9, result } => Some(result.clone()),
            _ => None,
        })
        .await;
    assert_eq!((result.content.as_str(), result.error), ("the agent has no such tool", true));
}

fn file(name: &str, bytes: &Bytes) -> NewFile {
    NewFile { name: name.into(), media_type: "application/octet-stream".into(), bytes: bytes.clone() }
}

/// A piece of a file, as it is answered.
async fn piece(worker: &mut Worker, of: &Assignment, digest: &BlobDigest, offset: u64) -> Option<(Vec<u8>, bool)> {
    use base64::Engine as _;
    let (call, run_id, epoch, digest) = (offset, of.run_id.clone(), of.epoch, digest.clone());
    worker.send(WorkerFrame::GetBlob { call, run_id, epoch, digest, offset }).await;
    let answer = worker.expect("a piece or a refusal", |frame| match frame {
        ServerFrame::BlobChunk { data, last, .. } => Some(Some((data.clone(), *last))),
        ServerFrame::BlobFailed { .. } => Some(None),
        _ => None,
    });
    let (data, last) = answer.await?;
    Some((base64::engine::general_purpose::STANDARD.decode(data).unwrap(), last))
}

#[tokio::test]
async fn a_run_may_fetch_its_sessions_files_and_no_others() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let bytes = Bytes::from(vec![7_u8; (1 << 20) + 5]);
    rig.service.submit(Submit { files: vec![file("a.bin", &bytes)], ..submit("helper", Some("s")) }).await.unwrap();
    let first = worker.assignment().await;
    assert!(first.uploads.is_empty());
    let digest = first.input.files[0].digest.clone();
    let (mut got, mut last) = (Vec::new(), false);
    while !last {
        let (more, is_last) = piece(&mut worker, &first, &digest, got.len() as u64).await.unwrap();
        got.extend(more);
        last = is_last;
    }
    assert_eq!(got, bytes);
    worker.finish(&first).await;

    rig.submit("helper", Some("s")).await;
    let second = worker.assignment().await;
    assert_eq!(second.uploads.files[0].file, first.input.files[0], "the next turn knows of it");
    let tail = piece(&mut worker, &second, &digest, 1 << 20).await;
    assert_eq!(tail, Some((vec![7; 5], true)), "and may fetch it");
    worker.finish(&second).await;

    let small = Bytes::from_static(b"other");
    rig.service.submit(Submit { files: vec![file("b.bin", &small)], ..submit("helper", Some("t")) }).await.unwrap();
    let stranger = worker.assignment().await;
    assert!(stranger.uploads.is_empty());
    assert_eq!(piece(&mut worker, &stranger, &digest, 0).await, None, "another session's");
    assert_eq!(piece(&mut worker, &stranger, &BlobDigest::of(b"something else"), 0).await, None, "nobody's");
}

#[tokio::test]
async fn a_breach_ends_that_run_only() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    rig.submit("helper", None).await;
    let good = worker.assignment().await;
    let too_many = vec![event(RunEvent::text("x")); 501];
    let too_large = vec![event(RunEvent::text("x".repeat(300 << 10)))];
    for (first_index, entries) in [(0, too_many), (0, too_large), (5, vec![started()])] {
        let run_id: RunId = rig.submit("helper", None).await.run.run_id;
        let assignment = worker.assignment().await;
        worker.append(&run_id, assignment.epoch, first_index, entries).await;
        worker
            .expect("a refusal", |frame| match frame {
                ServerFrame::Refused { run_id: of, .. } if *of == run_id => Some(()),
                _ => None,
            })
            .await;
        rig.status(&run_id, RunStatus::Error).await;
        let failure = rig.service.run(&run_id, None).await.unwrap().failure.unwrap();
        assert_eq!(failure.error_type, "limit_exceeded");
    }
    worker.finish(&good).await;
}
