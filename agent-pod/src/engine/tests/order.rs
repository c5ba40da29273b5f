use cadre_protocol::journal::Record;
use cadre_protocol::message::Role;
use cadre_protocol::model::{ModelDelta, ToolChoice};
use cadre_protocol::run::RunEnd;
use serde_json::json;

use super::super::fakes::{World, asks, assignment, reply, says};
use super::super::ports::ModelEvent;
use super::super::turn::Exit;
use super::run;

fn completed(text: &str) -> Option<Record> {
    Some(Record::Finished(RunEnd::Completed { content: json!(text), content_type: "str".into() }))
}

#[tokio::test]
async fn a_plain_answer_is_one_batch() {
    let (exit, world) = run(World::with([says("hello")]), assignment("hi")).await;
    assert_eq!(exit, Exit::Ended);
    assert_eq!(
        world.event_names(),
        [
            "RunStarted",
            "ModelRequestStarted",
            "RunContent",
            "ModelRequestCompleted",
            "RunContentCompleted",
            "RunCompleted"
        ]
    );
    assert_eq!(*world.batches.lock().unwrap(), [6]);
    assert_eq!(world.last_record(), completed("hello"));
    let events = world.events();
    assert_eq!(
        events[3],
        json!({"event": "ModelRequestCompleted", "model": "script", "model_provider": "Scripted", "input_tokens": 10,
            "output_tokens": 2, "total_tokens": 12, "cost": 0.0015, "time_to_first_token": 0.02, "duration": 0.04})
    );
    let request = world.requests.lock().unwrap()[0].clone();
    let said: Vec<_> = request.messages.iter().map(|message| (message.role, message.content.as_str())).collect();
    assert_eq!(said, [(Role::System, "Be brief."), (Role::User, "hi")]);
}

#[tokio::test]
async fn a_slow_answer_is_shown_at_once_and_then_in_pieces() {
    let piece = |text: &str| ModelEvent::Delta(ModelDelta::Text(text.into()));
    let fake = super::Fake(std::sync::Arc::new(World::with([vec![piece("a")]])));
    let (reins, control) = super::fakes::control();
    let running = tokio::spawn(super::turn::run(assignment("hi"), fake.host(), control));
    fake.0.has_entries(3).await;
    assert_eq!(fake.0.event_names(), ["RunStarted", "ModelRequestStarted", "RunContent"]);
    reins.send_replace(super::super::ports::Signal::Cancel("test".into()));
    assert_eq!(running.await.unwrap(), Exit::Ended);
}

#[tokio::test]
async fn several_calls_are_announced_together_and_run_in_order() {
    let calls = [("1", "shell", r#"{"command":"one"}"#), ("2", "shell", r#"{"command":"two"}"#)];
    let (_, world) = run(World::with([asks(&calls), says("done")]), assignment("hi")).await;
    assert_eq!(
        world.event_names(),
        [
            "RunStarted",
            "ModelRequestStarted",
            "ModelRequestCompleted",
            "ToolCallStarted",
            "ToolCallStarted",
            "ToolCallCompleted",
            "ToolCallCompleted",
            "ModelRequestStarted",
            "RunContent",
            "ModelRequestCompleted",
            "RunContentCompleted",
            "RunCompleted",
        ]
    );
    assert_eq!(*world.executed.lock().unwrap(), ["one", "two"]);
    assert_eq!(world.last_record(), completed("done"));
    let records: Vec<&str> =
        world.entries.lock().unwrap().iter().filter_map(|entry| entry.record.as_ref()).map(name).collect();
    assert_eq!(
        records,
        ["user", "assistant", "started", "finished", "tool", "started", "finished", "tool", "assistant", "end"]
    );
    let text = &world.tool_messages()[0].content;
    assert_eq!(text, "ran one");
}

fn name(record: &Record) -> &'static str {
    match record {
        Record::Message(message) => match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        },
        Record::ToolStarted { .. } => "started",
        Record::ToolFinished { .. } => "finished",
        Record::Retry {} => "retry",
        Record::Finished(_) => "end",
        Record::Paused { .. } => "pause",
    }
}

#[tokio::test]
async fn calls_that_cannot_run_are_answered() {
    let calls = [("1", "nothing", "{}"), ("2", "shell", "{bad"), ("3", "shell", r#"{"command":"ok"}"#)];
    let (_, world) = run(World::with([asks(&calls), says("done")]), assignment("hi")).await;
    assert_eq!(
        world.event_names()[3..8],
        ["ToolCallStarted", "ToolCallStarted", "ToolCallCompleted", "ToolCallError", "ToolCallCompleted"]
    );
    let results: Vec<_> = world.tool_messages().into_iter().map(|message| message.tool_call_error).collect();
    assert_eq!(results, [true, true, false]);
    assert_eq!(*world.executed.lock().unwrap(), ["ok"]);
}

#[tokio::test]
async fn calls_above_the_limit_are_refused() {
    let calls = [("1", "shell", r#"{"command":"one"}"#), ("2", "shell", r#"{"command":"two"}"#)];
    let mut limited = assignment("hi");
    limited.agent.tool_call_limit = Some(1);
    let (_, world) = run(World::with([asks(&calls), says("done")]), limited).await;
    assert_eq!(*world.executed.lock().unwrap(), ["one"]);
    assert!(world.tool_messages()[1].content.contains("limit of tool calls"));
}

#[tokio::test]
async fn a_schema_gives_one_object() {
    let mut typed = assignment("hi");
    typed.agent.output_schema = Some(json!({"title": "City", "type": "object"}));
    let (_, world) = run(World::with([says("{\"name\":\"Oslo\"}")]), typed).await;
    let events = world.events();
    assert_eq!(events[2]["content"], json!({"name": "Oslo"}));
    assert_eq!(events[2]["content_type"], "City");
    assert_eq!(world.event_names().iter().filter(|name| **name == "RunContent").count(), 1);
    assert_eq!(events[5]["content"], json!({"name": "Oslo"}));
}

#[tokio::test]
async fn a_forced_tool_is_forced_once() {
    let mut forced = assignment("hi");
    forced.agent.tool_choice = Some(ToolChoice::Required);
    let (_, world) = run(World::with([asks(&[("1", "list_files", "")]), says("done")]), forced).await;
    let requests = world.requests.lock().unwrap();
    let choices: Vec<_> = requests.iter().map(|request| request.tool_choice.clone()).collect();
    assert_eq!(choices, [Some(ToolChoice::Required), None]);
}

#[tokio::test]
async fn a_call_made_again_starts_anew_in_the_stream() {
    let news = vec![
        ModelEvent::Delta(ModelDelta::Text("hal".into())),
        ModelEvent::Restarted,
        ModelEvent::Delta(ModelDelta::Text("whole".into())),
        ModelEvent::Reply(Box::new(reply("whole", &[]))),
    ];
    let (_, world) = run(World::with([news]), assignment("hi")).await;
    assert_eq!(
        world.event_names()[1..6],
        ["ModelRequestStarted", "RunContent", "ModelRequestStarted", "RunContent", "ModelRequestCompleted"]
    );
    assert_eq!(world.last_record(), completed("whole"));
}
