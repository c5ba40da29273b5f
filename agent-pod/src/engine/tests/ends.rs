use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::agent::RetryPolicy;
use cadre_protocol::journal::Record;
use cadre_protocol::model::{ModelDelta, ModelError, ModelErrorCategory};
use cadre_protocol::run::RunEnd;
use serde_json::json;

use super::super::fakes::{self, Fake, NOW_MS, World, asks, assignment, says};
use super::super::ports::{ModelEvent, Signal};
use super::super::turn::{self, Exit};
use super::run;

fn failed(category: ModelErrorCategory) -> Vec<ModelEvent> {
    let message = "stub failure".to_owned();
    vec![ModelEvent::Failed(ModelError { category, message, status: None, retry_after_ms: None })]
}

fn error_type(world: &World) -> String {
    match world.last_record() {
        Some(Record::Finished(RunEnd::Error(failure))) => failure.error_type,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_permanent_failure_is_not_retried() {
    let mut eager = assignment("hi");
    eager.agent.retry.retries = 3;
    let (exit, world) = run(World::with([failed(ModelErrorCategory::Authentication)]), eager).await;
    assert_eq!(exit, Exit::Ended);
    assert_eq!(world.event_names(), ["RunStarted", "ModelRequestStarted", "RunError"]);
    assert_eq!(
        world.events()[2],
        json!({"event": "RunError", "content": "stub failure", "error_type": "model_provider_error",
            "error_id": "authentication"})
    );
}

#[tokio::test]
async fn a_budget_that_is_used_up_ends_the_run_for_good() {
    let mut eager = assignment("hi");
    eager.agent.retry.retries = 3;
    let (_, world) = run(World::with([failed(ModelErrorCategory::Budget)]), eager).await;
    assert_eq!(world.event_names(), ["RunStarted", "ModelRequestStarted", "RunError"]);
    assert_eq!(error_type(&world), "budget_exceeded");
}

#[tokio::test]
async fn a_passing_failure_is_retried() {
    let mut eager = assignment("hi");
    eager.agent.retry = RetryPolicy { retries: 2, delay_seconds: 0, exponential: true };
    let again = failed(ModelErrorCategory::Provider);
    let (_, world) = run(World::with([again.clone(), again, says("ok")]), eager).await;
    assert_eq!(
        world.event_names()[..6],
        [
            "RunStarted",
            "ModelRequestStarted",
            "CustomEvent",
            "ModelRequestStarted",
            "CustomEvent",
            "ModelRequestStarted"
        ]
    );
    let retry = json!({"event": "CustomEvent", "type": "retry", "attempt": 2, "attempts": 3, "delay": 0.0,
        "error": "stub failure"});
    assert_eq!(world.events()[2], retry);
}

#[tokio::test]
async fn a_conversation_without_end_is_ended() {
    let mut short = assignment("hi");
    short.agent.max_turns = 2;
    let call = |id| asks(&[(id, "list_files", "")]);
    let (_, world) = run(World::with([call("1"), call("2")]), short).await;
    assert_eq!(error_type(&world), "max_turns");
}

#[tokio::test]
async fn a_deadline_ends_a_running_tool() {
    let mut late = assignment("hi");
    late.deadline_ms = Some(NOW_MS + 2000);
    let mut world = World::with([asks(&[("1", "shell", r#"{"command":"forever"}"#)])]);
    world.hangs_on = Some("forever".into());
    let started = tokio::time::Instant::now();
    let (_, world) = run(world, late).await;
    assert!(started.elapsed() >= Duration::from_secs(2));
    assert_eq!(error_type(&world), "timeout");
    assert_eq!(world.event_names()[3..], ["ToolCallStarted", "ToolCallCompleted", "ToolCallError", "RunError"]);
}

#[tokio::test]
async fn a_cancel_ends_a_stream_with_the_text_so_far() {
    let partial = vec![ModelEvent::Delta(ModelDelta::Text("tick tick ".into()))];
    let fake = Fake(Arc::new(World::with([partial])));
    let (reins, control) = fakes::control();
    let running = tokio::spawn(turn::run(assignment("hi"), fake.host(), control));
    fake.0.has_entries(3).await;
    let started = tokio::time::Instant::now();
    reins.send_replace(Signal::Cancel("Run run was cancelled".into()));
    assert_eq!(running.await.unwrap(), Exit::Ended);
    assert!(started.elapsed() < Duration::from_secs(10));
    let end = RunEnd::Cancelled { content: "tick tick ".into(), reason: "Run run was cancelled".into() };
    assert_eq!(fake.0.last_record(), Some(Record::Finished(end)));
    assert_eq!(fake.0.event_names().last(), Some(&"RunCancelled"));
}

#[tokio::test]
async fn a_cancel_ends_a_tool_and_leaves_no_call_unanswered() {
    let calls = [("1", "shell", r#"{"command":"forever"}"#), ("2", "shell", r#"{"command":"two"}"#)];
    let mut world = World::with([asks(&calls)]);
    world.hangs_on = Some("forever".into());
    let fake = Fake(Arc::new(world));
    let (reins, control) = fakes::control();
    let running = tokio::spawn(turn::run(assignment("hi"), fake.host(), control));
    fake.0.hanging.notified().await;
    reins.send_replace(Signal::Cancel("stop".into()));
    assert_eq!(running.await.unwrap(), Exit::Ended);
    assert_eq!(*fake.0.executed.lock().unwrap(), ["forever"]);
    let answered: Vec<_> = fake.0.tool_messages().into_iter().filter_map(|message| message.tool_call_id).collect();
    assert_eq!(answered, ["1", "2"]);
}

#[tokio::test]
async fn an_aborted_run_writes_nothing_more() {
    let fake = Fake(Arc::new(World::with([vec![]])));
    let (reins, control) = fakes::control();
    let running = tokio::spawn(turn::run(assignment("hi"), fake.host(), control));
    fake.0.has_entries(2).await;
    let before = fake.0.entries.lock().unwrap().len();
    reins.send_replace(Signal::Abort);
    assert_eq!(running.await.unwrap(), Exit::Aborted);
    assert_eq!(fake.0.entries.lock().unwrap().len(), before);
}

#[tokio::test]
async fn a_process_that_ends_starts_no_further_tool() {
    let calls = [("1", "shell", r#"{"command":"one"}"#), ("2", "shell", r#"{"command":"two"}"#)];
    let fake = Fake(Arc::new(World::with([asks(&calls)])));
    let (_reins, control) = fakes::control();
    control.drain.cancel();
    // The answer to the first call of the model is still waited for in a run that has begun.
    let mut begun = assignment("hi");
    begun.progress.messages = vec![
        cadre_protocol::message::Message::text(cadre_protocol::message::Role::User, "hi", 0),
        fakes::reply("", &calls).message,
    ];
    begun.progress.next_index = 0;
    assert_eq!(turn::run(begun, fake.host(), control).await, Exit::HandedOver);
    assert!(fake.0.executed.lock().unwrap().is_empty());
    assert!(fake.0.last_record().is_none(), "no record forbids the next engine to run the call");
}

#[tokio::test]
async fn no_tool_runs_in_an_open_network() {
    let mut world = World::with([asks(&[("1", "shell", r#"{"command":"one"}"#)]), says("ok")]);
    world.isolated = false;
    let (_, world) = run(world, assignment("hi")).await;
    assert!(world.executed.lock().unwrap().is_empty());
    assert!(world.tool_messages()[0].content.contains("not isolated"));
}

#[tokio::test]
async fn a_run_without_a_place_begins_nothing_and_can_be_cancelled() {
    let fake = Fake(Arc::new(World::with([says("ok")])));
    let (reins, control) = fakes::control();
    let place = control.slot().await;
    assert!(place.is_some());
    let running = tokio::spawn(turn::run(assignment("hi"), fake.host(), control.clone()));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    reins.send_replace(Signal::Cancel("stop".into()));
    assert_eq!(running.await.unwrap(), Exit::Ended);
    assert_eq!(fake.0.event_names(), ["RunCancelled"]);

    let fake = Fake(Arc::new(World::with([says("ok")])));
    reins.send_replace(Signal::Go);
    let running = tokio::spawn(turn::run(assignment("hi"), fake.host(), control.clone()));
    drop(place);
    assert_eq!(running.await.unwrap(), Exit::Ended);
    assert_eq!(fake.0.event_names().last(), Some(&"RunCompleted"));

    let _slot = control.slot().await;
    control.drain.cancel();
    assert_eq!(turn::run(assignment("hi"), fake.host(), control).await, Exit::HandedOver);
}
