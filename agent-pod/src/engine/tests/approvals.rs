//! Calls that wait for a person.

use std::sync::Arc;

use cadre_protocol::agent::{Builtin, Gates, OnUnknownOutcome};
use cadre_protocol::exec::ExecBody;
use cadre_protocol::journal::{Progress, Record};
use cadre_protocol::requirement::{Decision, Gate, RunRequirement, Verdict, arguments_sha256};
use cadre_protocol::run::RunEnd;
use cadre_protocol::worker::Assignment;
use serde_json::{Value, json};

use super::super::fakes::{World, asks, assignment, says};
use super::super::ports::ModelEvent;
use super::super::turn::Exit;
use super::run;

type Call = (&'static str, &'static str, &'static str);

const ONE: Call = ("1", "shell", r#"{"command":"one"}"#);
const TWO: Call = ("2", "shell", r#"{"command":"two"}"#);
const READ: Call = ("r", "read_file", r#"{"path":"a"}"#);

/// A run of an agent whose family of tools has these gates.
fn gated(builtin: Builtin, gates: Gates) -> Assignment {
    let mut run = assignment("hi");
    run.agent.tools.iter_mut().find(|tool| tool.builtin == builtin).unwrap().gates = gates;
    run
}

fn approval() -> Assignment {
    gated(Builtin::Shell, Gates { approval: vec!["shell".into()], ..Gates::default() })
}

/// What a run has paused for.
fn paused(world: &World) -> Vec<RunRequirement> {
    match world.last_record() {
        Some(Record::Paused { requirements, .. }) => requirements,
        other => panic!("{other:?}"),
    }
}

fn answer(world: &World) -> String {
    match world.last_record() {
        Some(Record::Finished(RunEnd::Completed { content, .. })) => content.as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

fn yes(mut requirement: RunRequirement) -> Decision {
    requirement.tool_execution.confirmed = Some(true);
    decision(requirement)
}

fn no(mut requirement: RunRequirement, note: Option<&str>) -> Decision {
    let tool = &mut requirement.tool_execution;
    (tool.confirmed, tool.confirmation_note) = (Some(false), note.map(str::to_owned));
    decision(requirement)
}

fn decision(requirement: RunRequirement) -> Decision {
    let verdict = requirement.verdict().unwrap();
    let tool = requirement.tool_execution;
    Decision { verdict, arguments_sha256: arguments_sha256(&tool.tool_args), tool }
}

/// The next engine, which is told what was decided.
async fn go_on(
    world: Arc<World>,
    of: Assignment,
    decisions: Vec<Decision>,
    script: Vec<Vec<ModelEvent>>,
) -> Arc<World> {
    let progress = Progress { decisions, ..world.progress() };
    let world = Arc::try_unwrap(world).ok().expect("the first engine is gone");
    *world.script.lock().unwrap() = script.into();
    let (exit, world) = run(world, Assignment { progress, attempt: 2, ..of }).await;
    assert_eq!(exit, Exit::Ended);
    world
}

fn executed(world: &World) -> Vec<String> {
    world.executed.lock().unwrap().clone()
}

#[tokio::test]
async fn a_run_pauses_for_the_calls_that_need_a_yes_once_the_others_have_run() {
    let (exit, world) = run(World::with([asks(&[ONE, READ, TWO])]), approval()).await;
    assert_eq!(exit, Exit::Ended);
    assert_eq!(executed(&world), ["read a"]);
    let requirements = paused(&world);
    let calls: Vec<_> = requirements.iter().map(|it| (it.gate(), &*it.tool_execution.tool_call_id)).collect();
    assert_eq!(calls, [(Gate::Confirmation, "1"), (Gate::Confirmation, "2")]);
    assert_eq!(Value::Object(requirements[0].tool_execution.tool_args.clone()), json!({"command": "one"}));
    let names = world.event_names();
    assert_eq!(names[names.len() - 4..], ["ToolCallStarted", "ToolCallCompleted", "RunContentCompleted", "RunPaused"]);
    let event = world.events().pop().unwrap();
    assert_eq!(event["content"], "I have tools to execute, but I need confirmation.");
    assert_eq!(event["tools"][0]["requires_confirmation"], true);
    assert_eq!(event["requirements"][1]["tool_execution"]["tool_call_id"], "2");
}

#[tokio::test]
async fn what_was_approved_runs_and_what_was_rejected_is_told() {
    let (_, world) = run(World::with([asks(&[ONE, TWO])]), approval()).await;
    let [first, second] = paused(&world).try_into().unwrap();
    let decisions = vec![yes(first), no(second, Some("too risky"))];
    let world = go_on(world, approval(), decisions, vec![says("done")]).await;
    assert_eq!(answer(&world), "done");
    assert_eq!(executed(&world), ["one"]);
    let told: Vec<String> = world.tool_messages().into_iter().map(|message| message.content).collect();
    assert!(told[0].contains("ran one"), "{told:?}");
    assert_eq!(told[1], "The user rejected this call. It was not run. They said: too risky");
    let names = world.event_names();
    let at = names.iter().position(|name| *name == "RunPaused").unwrap();
    let expected = ["RunContinued", "ToolCallStarted", "ToolCallCompleted", "ModelRequestStarted"];
    assert_eq!(names[at + 1..][..4], expected, "a rejected call leaves no trace in the stream");
    let tools: Vec<_> = world.progress().tool_calls.into_iter().map(|state| state.tool).collect();
    let flags: Vec<_> =
        tools.iter().map(|tool| (tool.confirmed, tool.requires_confirmation, tool.tool_call_error)).collect();
    assert_eq!(flags, [(Some(true), Some(false), Some(false)), (Some(false), Some(false), Some(true))]);
}

#[tokio::test]
async fn a_second_pause_asks_again_even_if_the_model_uses_an_id_again() {
    let (_, world) = run(World::with([asks(&[ONE])]), approval()).await;
    let first = yes(paused(&world).remove(0));
    let world = go_on(world, approval(), vec![first], vec![asks(&[ONE])]).await;
    assert_eq!(executed(&world), ["one"]);
    assert_eq!(paused(&world).len(), 1, "one word is for one execution");
}

#[tokio::test]
async fn an_approval_of_something_else_runs_nothing() {
    let (_, world) = run(World::with([asks(&[ONE])]), approval()).await;
    let asked = paused(&world).remove(0);
    let mut other = asked.clone();
    other.tool_execution.tool_args.insert("command".into(), "two".into());
    let mut extended = asked.clone();
    extended.tool_execution.tool_args.insert("cwd".into(), "/".into());
    let mut renamed = asked.clone();
    renamed.tool_execution.tool_name = "http".into();
    let rehashed = Decision { arguments_sha256: arguments_sha256(&other.tool_execution.tool_args), ..yes(asked) };
    let entries = world.entries.lock().unwrap().clone();
    for wrong in [yes(other), yes(extended), yes(renamed), rehashed] {
        let fresh = World { entries: std::sync::Mutex::new(entries.clone()), ..World::default() };
        let next = go_on(Arc::new(fresh), approval(), vec![wrong], vec![says("done")]).await;
        assert!(executed(&next).is_empty());
        assert!(next.tool_messages()[0].content.contains("what was approved is not what was asked for"));
    }
}

#[tokio::test]
async fn a_call_that_began_never_begins_again_on_the_same_word() {
    for idempotent in [false, true] {
        let mut of = approval();
        of.agent.on_unknown_outcome = OnUnknownOutcome::Retry;
        of.agent.tools[0].idempotent = idempotent;
        let (_, world) = run(World::with([asks(&[ONE])]), of.clone()).await;
        let approved = yes(paused(&world).remove(0));
        // The engine is lost after the record of the start: RunContinued, then the start.
        let cut = world.progress().next_index + 2;
        let progress = Progress { decisions: vec![approved.clone()], ..world.progress() };
        let mut lost = Arc::try_unwrap(world).ok().unwrap();
        lost.cut = Some(cut);
        let fake = super::Fake(Arc::new(lost));
        let (_reins, control) = super::fakes::control();
        let second = Assignment { progress, attempt: 2, ..of.clone() };
        let running = tokio::spawn(super::turn::run(second, fake.host(), control));
        fake.0.cut_reached.notified().await;
        running.abort();
        let _ = running.await;
        let mut world = Arc::try_unwrap(fake.0).ok().unwrap();
        world.cut = None;
        assert!(executed(&world).is_empty(), "it may begin only when its start is durable");
        let world = go_on(Arc::new(world), of, vec![approved], vec![says("done")]).await;
        assert!(executed(&world).is_empty());
        assert!(world.tool_messages()[0].content.contains("is unknown"), "{:?}", world.tool_messages());
    }
}

#[tokio::test]
async fn a_call_whose_runner_is_lost_is_not_run_again() {
    let mut of = approval();
    of.agent.tools[0].idempotent = true;
    let (_, world) = run(World::with([asks(&[ONE])]), of.clone()).await;
    let approved = yes(paused(&world).remove(0));
    let lost = super::super::ports::Lost { reason: "gone".into(), may_have_happened: true };
    world.answers.lock().unwrap().extend([Err(lost), Ok(ExecBody::Done { effect: Default::default() })]);
    let world = go_on(world, of, vec![approved], vec![says("done")]).await;
    assert_eq!(executed(&world), ["one"]);
    assert!(world.tool_messages()[0].content.contains("is unknown"));
}

#[tokio::test]
async fn an_engine_that_was_lost_before_the_pause_pauses_again() {
    let mut world = World::with([asks(&[ONE, READ])]);
    // RunStarted, request started, completed, reply.
    world.cut = Some(4);
    let fake = super::Fake(Arc::new(world));
    let (_reins, control) = super::fakes::control();
    let running = tokio::spawn(super::turn::run(approval(), fake.host(), control));
    fake.0.cut_reached.notified().await;
    running.abort();
    let _ = running.await;
    let mut world = Arc::try_unwrap(fake.0).ok().unwrap();
    world.cut = None;
    let world = go_on(Arc::new(world), approval(), Vec::new(), Vec::new()).await;
    assert_eq!((paused(&world).len(), executed(&world)), (1, vec!["read a".to_owned()]));
}

#[tokio::test]
async fn the_user_gives_what_the_model_may_not() {
    let gates = Gates { user_input: vec!["command".into(), "timeout_seconds".into()], ..Gates::default() };
    let of = gated(Builtin::Shell, gates);
    let (_, world) = run(World::with([asks(&[("1", "shell", r#"{"cwd":"src"}"#)])]), of.clone()).await;
    let mut asked = paused(&world).remove(0);
    let shown = serde_json::to_value(&asked.user_input_schema).unwrap();
    let command = json!({"name": "command", "field_type": "str", "description": "The command line.", "value": null});
    assert_eq!((&shown[0], &shown[1]["field_type"]), (&command, &json!("int")));
    let offered = world.requests.lock().unwrap()[0].tools[0].parameters.clone();
    assert_eq!(offered["properties"].as_object().unwrap().keys().collect::<Vec<_>>(), ["cwd"]);
    let tool = &mut asked.tool_execution;
    tool.answered = Some(true);
    tool.tool_args.insert("command".into(), "mine".into());
    let world = go_on(world, of, vec![decision(asked)], vec![says("done")]).await;
    assert_eq!(executed(&world), ["mine"]);
    assert_eq!(world.progress().tool_calls[0].tool.tool_args["cwd"], "src");
}

#[tokio::test]
async fn what_the_caller_carries_out_is_told_and_not_run() {
    let of = gated(Builtin::Http, Gates { external: vec!["*".into()], ..Gates::default() });
    let call = ("1", "http", r#"{"url":"https://a.example"}"#);
    let (_, world) = run(World::with([asks(&[call])]), of.clone()).await;
    let mut asked = paused(&world).remove(0);
    assert_eq!(asked.tool_execution.external_execution_required, Some(true));
    asked.tool_execution.result = Some("the page".into());
    let done = decision(asked);
    assert_eq!(done.verdict, Verdict::Executed);
    let world = go_on(world, of, vec![done], vec![says("done")]).await;
    assert!(executed(&world).is_empty());
    assert_eq!(world.tool_messages()[0].content, "the page");
    assert_eq!(world.progress().tool_calls[0].tool.result.as_deref(), Some("the page"));
}

#[tokio::test]
async fn nobody_is_asked_about_a_call_that_is_no_good_or_too_many() {
    let wrong = ("w", "shell", r#"{"cmd":"one"}"#);
    let (_, world) = run(World::with([asks(&[wrong]), says("sorry")]), approval()).await;
    assert_eq!(answer(&world), "sorry");
    let mut limited = approval();
    limited.agent.tool_call_limit = Some(1);
    let (_, world) = run(World::with([asks(&[ONE, TWO])]), limited).await;
    let calls: Vec<_> = paused(&world).into_iter().map(|it| it.tool_execution.tool_call_id).collect();
    assert_eq!(calls, ["1"]);
    assert!(world.tool_messages()[0].content.contains("limit of tool calls"), "{:?}", world.tool_messages());
}
