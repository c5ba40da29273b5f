//! Runs that go on after their end, runs that begin with a part of another one, and attempts after failures.

use std::sync::Arc;

use cadre_protocol::agent::{OnUnknownOutcome, RetryPolicy};
use cadre_protocol::ids::BlobDigest;
use cadre_protocol::journal::{Progress, Record};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::{ModelError, ModelErrorCategory};
use cadre_protocol::run::{Attachment, RunEnd};
use cadre_protocol::worker::Assignment;

use super::super::fakes::{self, Fake, NOW_MS, World, asks, assignment, reply, says};
use super::super::ports::ModelEvent;
use super::super::turn::{self, Exit};
use super::run;

fn fails(category: ModelErrorCategory) -> Vec<ModelEvent> {
    let message = "stub failure".to_owned();
    vec![ModelEvent::Failed(ModelError { category, message, status: None, retry_after_ms: None })]
}

fn shell(id: &'static str, command: &'static str) -> (&'static str, &'static str, &'static str) {
    (id, "shell", command)
}

const ONE: &str = r#"{"command":"one"}"#;
const TWO: &str = r#"{"command":"two"}"#;

/// Resumes the run of a world in which it has failed.
async fn resume(world: Arc<World>, script: Vec<Vec<ModelEvent>>, policy: OnUnknownOutcome) -> Arc<World> {
    let progress = world.resumed();
    let mut world = Arc::try_unwrap(world).ok().expect("the first engine is gone");
    world.hangs_on = None;
    *world.script.lock().unwrap() = script.into();
    let mut second = Assignment { progress, attempt: 2, ..assignment("hi") };
    second.agent.on_unknown_outcome = policy;
    let (exit, world) = run(world, second).await;
    assert_eq!(exit, Exit::Ended);
    world
}

fn error(world: &World) -> String {
    match world.last_record() {
        Some(Record::Finished(RunEnd::Error(failure))) => failure.error_type,
        other => panic!("{other:?}"),
    }
}

fn completed(world: &World) -> String {
    match world.last_record() {
        Some(Record::Finished(RunEnd::Completed { content, .. })) => content.as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_run_that_failed_goes_on_at_its_last_step() {
    let script = [asks(&[shell("1", ONE), shell("2", TWO)]), fails(ModelErrorCategory::Authentication)];
    let (_, world) = run(World::with(script), assignment("hi")).await;
    assert_eq!(error(&world), "model_provider_error");
    let before = world.entries.lock().unwrap().len();
    let world = resume(world, vec![says("done")], OnUnknownOutcome::Report).await;
    assert_eq!(completed(&world), "done");
    assert_eq!(*world.executed.lock().unwrap(), ["one", "two"], "no call ran again");
    let names = world.event_names();
    let at = names.iter().position(|name| *name == "RunError").unwrap();
    assert_eq!(names[at + 1..][..2], ["RunContinued", "ModelRequestStarted"]);
    assert!(world.entries.lock().unwrap()[before].event.is_some(), "events go on after the last one");
    let seen = world.requests.lock().unwrap().last().unwrap().messages.clone();
    let roles: Vec<_> = seen.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Tool]);
}

/// A run whose time was over while the first of two calls ran.
async fn cut_off() -> Arc<World> {
    let mut world = World::with([asks(&[shell("1", ONE), shell("2", TWO)])]);
    world.hangs_on = Some("one".into());
    let late = Assignment { deadline_ms: Some(NOW_MS + 100), ..assignment("hi") };
    let (_, world) = run(world, late).await;
    assert_eq!(error(&world), "timeout");
    assert_eq!(world.tool_messages().len(), 2, "the conversation has no gap");
    world
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_reported_and_one_that_never_began_is_run() {
    let world = resume(cut_off().await, vec![says("done")], OnUnknownOutcome::Report).await;
    assert_eq!(completed(&world), "done");
    assert_eq!(*world.executed.lock().unwrap(), ["one", "two"]);
    let told: Vec<_> = world.tool_messages().into_iter().filter(|message| !message.stand_in).collect();
    assert!(told[0].content.contains("is unknown") && told[1].content.contains("ran two"), "{told:?}");
    let seen = world.requests.lock().unwrap().last().unwrap().messages.clone();
    let results: Vec<_> = seen.iter().filter_map(|message| message.tool_call_id.as_deref()).collect();
    assert_eq!(results, ["1", "2"], "each call has one result");
}

#[tokio::test]
async fn a_call_that_was_cut_off_runs_again_where_the_author_says_so() {
    let world = resume(cut_off().await, vec![says("done")], OnUnknownOutcome::Retry).await;
    assert_eq!(*world.executed.lock().unwrap(), ["one", "one", "two"]);
}

fn kept(input: Option<&str>) -> Progress {
    let call = reply("", &[shell("1", ONE)]).message;
    let result = Message::tool_result(&call.tool_calls[0], "ran one", false, NOW_MS);
    let mut messages = vec![Message::text(Role::User, "hi", NOW_MS), call, result];
    messages.extend(input.map(|text| Message::text(Role::User, text, NOW_MS)));
    Progress { messages, ..Progress::default() }
}

#[tokio::test]
async fn a_fork_begins_with_what_was_kept() {
    let fork = Assignment { progress: kept(Some("and now?")), ..assignment("and now?") };
    let (_, world) = run(World::with([says("now")]), fork).await;
    assert_eq!(completed(&world), "now");
    assert_eq!(world.event_names()[..2], ["RunContinued", "ModelRequestStarted"]);
    let seen = world.requests.lock().unwrap()[0].messages.clone();
    let said: Vec<_> = seen.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(said, ["Be brief.", "hi", "", "ran one", "and now?"]);
    assert!(world.executed.lock().unwrap().is_empty());
    let records = world.entries.lock().unwrap();
    let own = records.iter().filter(|entry| matches!(entry.record, Some(Record::Message(_)))).count();
    assert_eq!(own, 1, "only the answer is the fork's own");
}

#[tokio::test]
async fn a_fork_leaves_the_files_as_they_are() {
    let file =
        Attachment { name: "a.csv".into(), media_type: "text/csv".into(), size: 1, digest: BlobDigest::of(b"x") };
    let mut fork = Assignment { progress: kept(None), ..assignment("hi") };
    fork.input.files = vec![file];
    let (_, world) = run(World { blob: b"x".to_vec(), ..World::with([says("ok")]) }, fork.clone()).await;
    assert!(world.executed.lock().unwrap().is_empty(), "it is there, perhaps changed");
    fork.progress = Progress::default();
    let (_, world) = run(World { blob: b"x".to_vec(), ..World::with([says("ok")]) }, fork).await;
    assert_eq!(world.executed.lock().unwrap().len(), 1, "a new run stages it");
}

fn eager(retries: u32) -> Assignment {
    let mut eager = assignment("hi");
    eager.agent.retry = RetryPolicy { retries, delay_seconds: 0, exponential: false };
    eager
}

#[tokio::test]
async fn retries_belong_to_the_run_and_repeat_no_tool() {
    let network = || fails(ModelErrorCategory::Network);
    let script = [network(), asks(&[shell("1", ONE)]), network(), says("done")];
    let (_, world) = run(World::with(script.clone()), eager(2)).await;
    assert_eq!(completed(&world), "done");
    assert_eq!(*world.executed.lock().unwrap(), ["one"]);
    assert_eq!(world.progress().retries, 2, "both are recorded");
    let (_, world) = run(World::with(script), eager(1)).await;
    assert_eq!(error(&world), "model_provider_error", "one was allowed in all");
}

#[tokio::test]
async fn another_engine_goes_on_counting() {
    let mut second = eager(2);
    second.progress.retries = 2;
    let (_, world) = run(World::with([fails(ModelErrorCategory::Network)]), second).await;
    assert_eq!(error(&world), "model_provider_error");
    assert_eq!(world.event_names(), ["RunStarted", "ModelRequestStarted", "RunError"]);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_the_next_attempt() {
    let mut patient = eager(1);
    patient.agent.retry.delay_seconds = 3600;
    let fake = Fake(Arc::new(World::with([fails(ModelErrorCategory::Network)])));
    let (_reins, control) = fakes::control();
    let drain = control.drain.clone();
    let running = tokio::spawn(turn::run(patient, fake.host(), control));
    fake.0.has_entries(3).await;
    drain.cancel();
    assert_eq!(running.await.unwrap(), Exit::HandedOver);
    assert_eq!(fake.0.progress().retries, 1);
}
