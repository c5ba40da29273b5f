//! Runs that wait for a person, seen from their workers and from the gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use cadre_api::domain::continuing::{Continue, Continued};
use cadre_api::domain::decisions::Answer;
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::RunId;
use cadre_protocol::journal::{Entry, Record};
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::requirement::{RunRequirement, Verdict};
use cadre_protocol::run::RunStatus;
use cadre_protocol::tool::ToolExecution;
use cadre_protocol::worker::{Assignment, RemoteToolResult, ServerFrame, WorkerFrame};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

use crate::support::*;

fn arguments(url: &str) -> Map<String, Value> {
    json!({"url": url}).as_object().unwrap().clone()
}

/// The entries of a run that asks for a call of `http` and waits.
fn asks(url: &str) -> Vec<Entry> {
    let call = ToolCall { id: "c".into(), name: "http".into(), arguments: json!({"url": url}).to_string() };
    let reply = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "", 1) };
    let tool = ToolExecution {
        tool_call_id: "c".into(),
        tool_name: "http".into(),
        tool_args: arguments(url),
        requires_confirmation: Some(true),
        ..ToolExecution::default()
    };
    let requirements = vec![RunRequirement::new(tool, 1)];
    let record = |record| Entry { at_ms: 1, event: None, record: Some(record) };
    vec![
        started(),
        record(Record::Message(Message::text(Role::User, "hello", 1))),
        record(Record::Message(reply)),
        Entry {
            at_ms: 2,
            event: Some(RunEvent::paused("May I?".into(), requirements.clone())),
            record: Some(Record::Paused { content: "May I?".into(), requirements }),
        },
    ]
}

/// A run that waits: four entries.
async fn pause(rig: &Rig, worker: &mut Worker, agent: &str, session: Option<&str>, url: &str) -> Assignment {
    rig.submit(agent, session).await;
    let assignment = worker.assignment().await;
    worker.append(&assignment.run_id, assignment.epoch, 0, asks(url)).await;
    worker.acked(&assignment.run_id, 4).await;
    rig.status(&assignment.run_id, RunStatus::Paused).await;
    assignment
}

async fn approve(rig: &Rig, run_id: &RunId) -> Continued {
    let answers = vec![Answer { call_id: Some("c".into()), confirmed: Some(true), ..Answer::default() }];
    rig.service.continue_run(run_id, None, Continue { answers, ..Continue::default() }).await.unwrap()
}

async fn http(worker: &mut Worker, of: &Assignment, call: u64, id: &str, url: &str) -> RemoteToolResult {
    worker
        .send(WorkerFrame::ToolCall {
            call,
            run_id: of.run_id.clone(),
            epoch: of.epoch,
            tool_call_id: id.into(),
            tool: "http".into(),
            arguments: arguments(url),
        })
        .await;
    worker
        .expect("a result", |frame| match frame {
            ServerFrame::ToolResult { call: of, result } if *of == call => Some(result.clone()),
            _ => None,
        })
        .await
}

fn manifests(gate: &str) -> String {
    format!(
        "
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {{name: echo}}
spec: {{provider: Scripted, model: echo-1}}
---
apiVersion: cadre.dev/v1alpha1
kind: Agent
metadata: {{name: caller}}
spec:
  modelRef: {{name: echo}}
  tools: [{{type: Builtin, builtin: {{name: Http, http: {{hosts: [127.0.0.1]}}}}, {gate}}}]
"
    )
}

#[tokio::test]
async fn the_gateway_makes_a_call_once_and_only_the_one_that_was_approved() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let made = Arc::new(AtomicU32::new(0));
    let count = made.clone();
    let upstream = Router::new().fallback(move || async move {
        count.fetch_add(1, Ordering::SeqCst);
        "paid"
    });
    tokio::spawn(axum::serve(listener, upstream).into_future());
    let (url, other) = (format!("http://{address}/pay"), format!("http://{address}/pay-more"));
    let rig = rig_of(&manifests("requireApproval: [http]"), memory().await, limits()).await;
    let mut worker = rig.worker("pool").await;
    rig.submit("caller", None).await;
    let first = worker.assignment().await;
    assert!(http(&mut worker, &first, 1, "c", &url).await.content.starts_with("403"), "nobody was asked");
    worker.append(&first.run_id, first.epoch, 0, asks(&url)).await;
    worker.acked(&first.run_id, 4).await;
    rig.status(&first.run_id, RunStatus::Paused).await;
    approve(&rig, &first.run_id).await;
    let again = worker.assignment().await;
    for (call, id, wanted) in [(2, "c", &other), (3, "d", &url), (4, "", &url)] {
        let refused = http(&mut worker, &again, call, id, wanted).await;
        assert!(refused.error && refused.content.starts_with("403"), "{id} {wanted}: {refused:?}");
    }
    assert_eq!(made.load(Ordering::SeqCst), 0);
    let paid = http(&mut worker, &again, 5, "c", &url).await;
    assert!(!paid.error && paid.content.contains("paid"), "{paid:?}");
    assert!(http(&mut worker, &again, 6, "c", &url).await.content.starts_with("403"), "it is spent");
    assert_eq!(made.load(Ordering::SeqCst), 1, "one effect");
}

#[tokio::test]
async fn the_gateway_never_makes_a_call_that_is_the_callers_to_make() {
    let rig = rig_of(&manifests("externalExecution: ['*']"), memory().await, limits()).await;
    let mut worker = rig.worker("pool").await;
    let first = pause(&rig, &mut worker, "caller", None, "http://127.0.0.1:1/").await;
    approve(&rig, &first.run_id).await;
    let again = worker.assignment().await;
    assert!(http(&mut worker, &again, 1, "c", "http://127.0.0.1:1/").await.content.starts_with("403"));
}

#[tokio::test]
async fn a_paused_run_goes_on_with_the_worker_that_is_there_or_with_another_one() {
    for goes in [false, true] {
        let rig = rig().await;
        let mut worker = rig.worker("of-s").await;
        let first = pause(&rig, &mut worker, "helper", Some("s"), "u").await;
        let (run_id, mut kept) = (first.run_id.clone(), Some(worker));
        let events = rig.events(&run_id, None).await;
        assert_eq!(events.last().unwrap(), &(3, "RunPaused".to_owned()), "the stream ends");
        if let Some(worker) = kept.take_if(|_| goes) {
            worker.vanish().await;
            until("the worker is given up", || !rig.notes.lost.lock().unwrap().is_empty()).await;
            assert!(rig.notes.wanted.lock().unwrap().is_empty(), "nobody needs a worker now");
        }
        let continued = approve(&rig, &run_id).await;
        assert_eq!((&continued.submitted.run.run_id, continued.after), (&run_id, Some(3)));
        let mut worker = match kept {
            None => {
                until("a worker is wanted", || !rig.notes.wanted.lock().unwrap().is_empty()).await;
                Worker::connect(&rig, "of-s", "second", Vec::new()).await.unwrap()
            }
            Some(worker) => worker,
        };
        let again = worker.assignment().await;
        assert_eq!((&again.run_id, again.attempt, again.progress.next_index), (&run_id, 2, 4));
        assert!(again.epoch > first.epoch);
        let decided = &again.progress.decisions[0];
        assert_eq!((decided.verdict, decided.tool.tool_call_id.as_str()), (Verdict::Approved, "c"));
        worker.append(&run_id, first.epoch, 4, vec![completed("late")]).await;
        worker.fenced(&run_id).await;
        worker.append(&run_id, again.epoch, 4, vec![event(RunEvent::RunContinued {}), completed("good")]).await;
        worker.acked(&run_id, 6).await;
        rig.status(&run_id, RunStatus::Completed).await;
    }
}

#[tokio::test]
async fn a_worker_that_never_heard_of_the_pause_does_not_get_the_run_back() {
    let rig = rig().await;
    let mut worker = rig.worker("of-s").await;
    let first = pause(&rig, &mut worker, "helper", Some("s"), "u").await;
    let run_id = first.run_id.clone();
    worker.vanish().await;
    let mut worker = Worker::connect(&rig, "of-s", "first", vec![held(&first)]).await.unwrap();
    worker.append(&run_id, first.epoch, 0, asks("u")).await;
    worker.acked(&run_id, 4).await;
    assert!(worker.has_none(|frame| matches!(frame, ServerFrame::Assign(_))).await);
    rig.status(&run_id, RunStatus::Paused).await;
    approve(&rig, &run_id).await;
    let again = worker.assignment().await;
    worker.append(&run_id, again.epoch, 4, vec![completed("good")]).await;
    worker.acked(&run_id, 5).await;
    rig.status(&run_id, RunStatus::Completed).await;
}

#[tokio::test]
async fn a_cancel_that_meets_the_pause_ends_the_run() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    rig.submit("helper", Some("s")).await;
    let first = worker.assignment().await;
    let run_id = first.run_id.clone();
    rig.service.cancel(&run_id, None).await.unwrap();
    worker.append(&run_id, first.epoch, 0, asks("u")).await;
    worker.acked(&run_id, 4).await;
    rig.status(&run_id, RunStatus::Cancelled).await;
    let events = rig.events(&run_id, None).await;
    assert_eq!(events.last().unwrap().1, "RunCancelled", "{events:?}");
    let next = rig.submit("helper", Some("s")).await.run.run_id;
    let assignment = worker.assignment().await;
    assert_eq!(assignment.run_id, next);
    worker.finish(&assignment).await;
}

#[tokio::test]
async fn many_answers_at_once_are_one() {
    let rig = rig().await;
    let mut worker = rig.worker("pool").await;
    let first = pause(&rig, &mut worker, "helper", None, "u").await;
    let run_id = first.run_id.clone();
    let answers = vec![Answer { call_id: Some("c".into()), confirmed: Some(true), ..Answer::default() }];
    let wish = Continue { answers, ..Continue::default() };
    let tries = (0..8).map(|_| rig.service.continue_run(&run_id, None, wish.clone()));
    for outcome in futures::future::join_all(tries).await {
        assert_eq!(outcome.unwrap().after, Some(3), "each sees what comes of it");
    }
    let again = worker.assignment().await;
    assert_eq!((again.attempt, again.progress.decisions.len()), (2, 1));
    assert!(worker.has_none(|frame| matches!(frame, ServerFrame::Assign(_))).await);
    worker.append(&run_id, again.epoch, 4, vec![completed("good")]).await;
    worker.acked(&run_id, 5).await;
}
