//! The operator's door: Run objects in, reports out.

use std::time::Duration;

use cadre_api::domain::Limits;
use cadre_protocol::feed::{FeedItem, RunReport, SubmitRun};
use cadre_protocol::ids::RunId;
use cadre_protocol::run::RunStatus;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::support::*;

type Body = hyper::body::Incoming;

async fn send(rig: &Rig, method: &str, path: &str, body: Option<Value>) -> http::Response<Body> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let bytes = body.map(|body| body.to_string()).unwrap_or_default();
    let request = http::Request::builder()
        .method(method)
        .uri(format!("http://{}{path}", rig.address))
        .header("authorization", "Bearer operator")
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from(bytes)))
        .unwrap();
    client.request(request).await.unwrap()
}

async fn report(response: http::Response<Body>) -> RunReport {
    assert_eq!(response.status(), 200);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

fn object(uid: &str, agent: &str) -> Value {
    let run = SubmitRun {
        namespace: "default".into(),
        name: format!("run-{uid}"),
        uid: uid.into(),
        agent: agent.into(),
        text: "hello".into(),
        files: Vec::new(),
        session_id: None,
        metadata: serde_json::Map::new(),
        output_schema: None,
        dependencies: serde_json::Map::new(),
        session_state: serde_json::Map::new(),
        timeout_seconds: None,
        retries: None,
    };
    serde_json::to_value(run).unwrap()
}

/// Lines of the feed, one after the other.
struct Lines {
    body: Body,
    text: String,
}

impl Lines {
    async fn follow(rig: &Rig) -> Self {
        let response = send(rig, "GET", "/operator/v1/feed", None).await;
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), text: String::new() }
    }

    async fn next(&mut self) -> FeedItem {
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let item = serde_json::from_str(line).unwrap();
                self.text = rest.to_owned();
                return item;
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.unwrap().unwrap().unwrap();
            self.text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    }

    async fn run(&mut self, status: RunStatus) -> RunReport {
        loop {
            match self.next().await {
                FeedItem::Run(report) if report.status == status => return *report,
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn a_run_object_of_one_agent_joins_no_session_of_another() {
    let rig = rig().await;
    let of = |uid: &str, agent: &str| {
        let mut run = object(uid, agent);
        run["session_id"] = "s".into();
        run
    };
    report(send(&rig, "POST", "/operator/v1/runs", Some(of("u1", "helper"))).await).await;
    let refused = send(&rig, "POST", "/operator/v1/runs", Some(of("u2", "narrow"))).await;
    // For good: 404 means an agent that may yet come.
    assert_eq!(refused.status(), 422);
}

#[tokio::test]
async fn a_run_object_is_submitted_once_and_reported() {
    // Workers end their runs by their own clocks, and these here have one that hardly moves.
    let rig = rig_with(memory().await, Limits { ended_runs_told: Duration::MAX, ..limits() }).await;
    let mut lines = Lines::follow(&rig).await;
    let mut credentials = 0;
    loop {
        match lines.next().await {
            FeedItem::Credential(_) => credentials += 1,
            FeedItem::Synced {} => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(credentials, 2);
    let first = report(send(&rig, "POST", "/operator/v1/runs", Some(object("u1", "helper"))).await).await;
    let again = report(send(&rig, "POST", "/operator/v1/runs", Some(object("u1", "helper"))).await).await;
    assert_eq!((&first.run_id, &first.uid, first.name.as_str()), (&again.run_id, &again.uid, "run-u1"));
    assert_eq!(lines.run(RunStatus::Pending).await.run_id, first.run_id);
    let mut worker = rig.worker("pool").await;
    let assignment = worker.assignment().await;
    assert_eq!(lines.run(RunStatus::Running).await.attempts, 1);
    worker.finish(&assignment).await;
    let done = lines.run(RunStatus::Completed).await;
    assert_eq!((done.output.as_deref(), done.namespace.as_str()), (Some("hi"), "default"));

    // A reader that comes later is told all the same.
    let mut later = Lines::follow(&rig).await;
    assert_eq!(later.run(RunStatus::Completed).await.run_id, first.run_id);
    let load = loop {
        match later.next().await {
            FeedItem::Agent(load) => break load,
            FeedItem::Synced {} => panic!("no load before Synced"),
            _ => {}
        }
    };
    assert_eq!((load.name.as_str(), load.active_runs, load.queued_runs), ("helper", 0, 0));
    assert_eq!(load.last_run, Some((first.run_id, RunStatus::Completed)));
}

#[tokio::test]
async fn of_runs_that_ended_long_ago_nothing_is_told_but_to_who_asks() {
    let rig = rig_with(memory().await, Limits { ended_runs_told: Duration::ZERO, ..limits() }).await;
    let submit = async |uid| report(send(&rig, "POST", "/operator/v1/runs", Some(object(uid, "helper"))).await).await;
    let old = submit("old").await;
    send(&rig, "POST", "/operator/v1/runs/default/old/cancel", None).await;
    let open = submit("open").await;
    // The clock must have moved on from the end.
    let ended_at = rig.service.run(&RunId::new(&*old.run_id).unwrap(), None).await.unwrap().finished_at_ms.unwrap();
    until("time goes on", || rig.service.now_ms() > ended_at).await;
    let mut lines = Lines::follow(&rig).await;
    let mut told = Vec::new();
    loop {
        match lines.next().await {
            FeedItem::Run(report) => told.push(report.run_id),
            FeedItem::Synced {} => break,
            _ => {}
        }
    }
    assert_eq!(told, [open.run_id]);
    let looked = report(send(&rig, "GET", "/operator/v1/runs/default/old", None).await).await;
    assert_eq!((looked.run_id, looked.status), (old.run_id.clone(), RunStatus::Cancelled));
    for path in ["/operator/v1/runs/default/absent", "/operator/v1/runs/other/old"] {
        assert_eq!(send(&rig, "GET", path, None).await.status(), 404);
    }
    // Submitted again, it is that run all the same.
    assert_eq!(submit("old").await.run_id, old.run_id);
}

#[tokio::test]
async fn a_run_object_can_not_join_the_session_of_somebody_else() {
    let rig = rig().await;
    rig.submit("helper", Some("theirs")).await;
    let mut run = object("u3", "helper");
    run["session_id"] = json!("theirs");
    let response = send(&rig, "POST", "/operator/v1/runs", Some(run)).await;
    assert_eq!(response.status(), 422);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let problem: Value = serde_json::from_slice(&bytes).unwrap();
    assert!(problem["detail"].as_str().unwrap().starts_with("spec.session.id: "), "{problem}");
}

#[tokio::test]
async fn a_run_object_is_cancelled_by_its_uid() {
    let rig = rig().await;
    report(send(&rig, "POST", "/operator/v1/runs", Some(object("u2", "helper"))).await).await;
    let ended = report(send(&rig, "POST", "/operator/v1/runs/default/u2/cancel", None).await).await;
    assert_eq!(ended.status, RunStatus::Cancelled);
    assert_eq!(send(&rig, "POST", "/operator/v1/runs/default/absent/cancel", None).await.status(), 404);
    assert_eq!(send(&rig, "POST", "/operator/v1/runs/other/u2/cancel", None).await.status(), 404);
}

#[tokio::test]
async fn what_can_not_be_submitted_is_refused_with_a_code() {
    let rig = rig().await;
    for (body, status, code) in [
        (object("a", "absent"), 404, "not_found"),
        (object("b", "broken"), 503, "agent_not_ready"),
        (json!({"namespace": "default"}), 422, "validation_error"),
    ] {
        let response = send(&rig, "POST", "/operator/v1/runs", Some(body)).await;
        assert_eq!(response.status(), status);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let problem: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(problem["error_id"], code);
    }
}
