//! Traces of runs, as an OTLP collector gets them.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use cadre_api::domain::Submit;
use cadre_api::telemetry::{TraceParent, Traces};
use cadre_protocol::event::RunEvent;
use cadre_protocol::journal::{Entry, Record};
use cadre_protocol::tool::{ToolExecution, ToolMetrics};
use cadre_protocol::worker::ServerFrame;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::calls::ask;
use crate::support::*;

async fn collector() -> (String, UnboundedReceiver<Bytes>) {
    async fn take(State(sender): State<UnboundedSender<Bytes>>, body: Bytes) {
        sender.send(body).unwrap();
    }
    let (sender, bodies) = unbounded_channel();
    let router = Router::new().route("/v1/traces", post(take)).with_state(sender);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (endpoint, bodies)
}

fn spans(body: &Bytes) -> Vec<Span> {
    let request = ExportTraceServiceRequest::decode(body.clone()).unwrap();
    request.resource_spans.into_iter().flat_map(|of| of.scope_spans).flat_map(|of| of.spans).collect()
}

#[tokio::test]
async fn a_run_is_one_trace_that_tells_no_content() {
    let (endpoint, mut bodies) = collector().await;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let traces = Traces::to(&endpoint, &tasks, stop.clone()).unwrap();
    let rig = rig_traced(MANIFESTS, memory().await, limits(), traces).await;
    let mut worker = rig.worker("pool").await;
    let run_id = rig.submit("helper", None).await.run.run_id;
    let assignment = worker.assignment().await;
    worker.send(ask(&assignment, 1, "echo")).await;
    let replied = |frame: &ServerFrame| matches!(frame, ServerFrame::ModelReply { .. }).then_some(());
    worker.expect("a reply", replied).await;
    let tool = ToolExecution {
        tool_call_id: "call-1".to_owned(),
        tool_name: "shell".to_owned(),
        tool_args: serde_json::json!({"command": "canary"}).as_object().unwrap().clone(),
        ..ToolExecution::default()
    };
    let metrics = Some(ToolMetrics { start_time: 1.0, end_time: 3.5, duration: 2.5 });
    let done = ToolExecution { result: Some("canary".to_owned()), metrics, ..tool.clone() };
    let record = |record| Entry { at_ms: 1, event: None, record: Some(record) };
    let entries = vec![
        started(),
        record(Record::ToolStarted { tool, idempotent: false }),
        record(Record::ToolFinished { tool: done, effect: None, unknown_outcome: false }),
        event(RunEvent::text("canary")),
        completed("canary"),
    ];
    worker.append(&run_id, assignment.epoch, 0, entries).await;
    let body = bodies.recv().await.unwrap();
    stop.cancel();
    assert!(!body.windows(6).any(|piece| piece == b"canary"), "content is in a trace");
    let spans = spans(&body);
    let root = spans.iter().find(|span| span.name == "invoke_agent helper").unwrap();
    assert!(root.parent_span_id.is_empty());
    assert!(spans.iter().all(|span| span.trace_id == root.trace_id));
    let below = |parent: &Span| -> Vec<&str> {
        let children = spans.iter().filter(|span| span.parent_span_id == parent.span_id);
        let mut names: Vec<_> = children.map(|span| span.name.as_str()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(below(root), ["engine", "queue"]);
    let engine = spans.iter().find(|span| span.name == "engine").unwrap();
    assert_eq!(below(engine), ["chat echo-1", "execute_tool shell"]);
    let tool = spans.iter().find(|span| span.name == "execute_tool shell").unwrap();
    assert_eq!(tool.end_time_unix_nano - tool.start_time_unix_nano, 2_500_000_000);
}

#[tokio::test]
async fn a_callers_trace_goes_on_and_an_unsampled_one_does_not() {
    let (endpoint, mut bodies) = collector().await;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let traces = Traces::to(&endpoint, &tasks, stop.clone()).unwrap();
    let rig = rig_traced(MANIFESTS, memory().await, limits(), traces).await;
    let mut worker = rig.worker("pool").await;
    let parent = |flags: &str| format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
    for flags in ["00", "01"] {
        let trace_parent = TraceParent::parse(&parent(flags));
        assert!(trace_parent.is_some());
        rig.service.submit(Submit { trace_parent, ..submit("helper", None) }).await.unwrap();
        let assignment = worker.assignment().await;
        worker.finish(&assignment).await;
    }
    let spans = spans(&bodies.recv().await.unwrap());
    stop.cancel();
    let trace_id: Vec<u8> =
        (0..16).map(|at| u8::from_str_radix(&parent("01")[3 + 2 * at..][..2], 16).unwrap()).collect();
    let root = spans.iter().find(|span| span.name == "invoke_agent helper").unwrap();
    assert_eq!(root.parent_span_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    assert!(spans.iter().all(|span| span.trace_id == trace_id));
    assert_eq!(spans.iter().filter(|span| span.name == root.name).count(), 1, "the first was not sampled");
}
