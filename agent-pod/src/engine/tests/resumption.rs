use std::sync::Arc;

use cadre_protocol::agent::OnUnknownOutcome;
use cadre_protocol::journal::Record;
use cadre_protocol::run::RunEnd;
use cadre_protocol::worker::Assignment;
use proptest::prelude::*;

use super::super::fakes::{self, Fake, World, asks, assignment, says};
use super::super::ports::ModelEvent;
use super::super::turn::{self, Exit};

/// A conversation: for each turn of the model its calls, true for those that only read.
type Plan = Vec<Vec<bool>>;

fn script(plan: &Plan) -> Vec<Vec<ModelEvent>> {
    let mut script: Vec<Vec<ModelEvent>> = plan
        .iter()
        .enumerate()
        .map(|(turn, calls)| {
            let calls: Vec<(String, &str, String)> = calls
                .iter()
                .enumerate()
                .map(|(n, reads)| match reads {
                    true => (format!("{turn}-{n}"), "read_file", format!("{{\"path\":\"{turn}-{n}\"}}")),
                    false => (format!("{turn}-{n}"), "shell", format!("{{\"command\":\"do {turn}-{n}\"}}")),
                })
                .collect();
            let calls: Vec<_> = calls.iter().map(|(id, name, text)| (id.as_str(), *name, text.as_str())).collect();
            asks(&calls)
        })
        .collect();
    script.push(says("the end"));
    script
}

/// One attempt; the world takes entries up to `cut`, then the engine is killed.
async fn attempt(world: World, assignment: Assignment) -> (Option<Exit>, World) {
    let fake = Fake(Arc::new(world));
    let exit = {
        let (_reins, control) = fakes::control();
        tokio::select! {
            biased;
            exit = turn::run(assignment, fake.host(), control) => Some(exit),
            () = fake.0.cut_reached.notified() => None,
        }
    };
    (exit, Arc::try_unwrap(fake.0).ok().expect("the engine is gone"))
}

fn begin(plan: &Plan, cut: Option<u64>) -> World {
    World { keyed: script(plan), cut, ..World::default() }
}

async fn crash_and_go_on(plan: &Plan, cut: u64, policy: OnUnknownOutcome) -> World {
    let mut first = assignment("hi");
    first.agent.on_unknown_outcome = policy;
    let (_, mut world) = attempt(begin(plan, Some(cut)), first.clone()).await;
    world.cut = None;
    let second = Assignment { progress: world.progress(), attempt: 2, ..first };
    let (exit, world) = attempt(world, second).await;
    assert_eq!(exit, Some(Exit::Ended));
    world
}

fn answer(world: &World) -> Option<Record> {
    world.last_record()
}

fn check(plan: &Plan, policy: OnUnknownOutcome) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (_, whole) = attempt(begin(plan, None), assignment("hi")).await;
        let length = whole.entries.lock().unwrap().len() as u64;
        let expected = whole.executed.lock().unwrap().clone();
        let end = RunEnd::Completed { content: "the end".into(), content_type: "str".into() };
        for cut in 0..length {
            let world = crash_and_go_on(plan, cut, policy).await;
            assert_eq!(answer(&world), Some(Record::Finished(end.clone())), "cut at {cut}");
            let executed = world.executed.lock().unwrap().clone();
            for call in &expected {
                let times = executed.iter().filter(|done| *done == call).count();
                let repeatable = call.starts_with("read") || policy == OnUnknownOutcome::Retry;
                // A start that became durable and a crash before its result is the one case that allows 2, or none.
                let allowed = if repeatable { 1..=2 } else { 0..=1 };
                assert!(allowed.contains(&times), "cut at {cut}: {call} ran {times} times");
            }
            let repeats = executed.len().abs_diff(expected.len());
            assert!(repeats <= 1, "cut at {cut}: {executed:?}");
            if executed.len() < expected.len() {
                let told = world.tool_messages().iter().filter(|told| told.content.contains("is unknown")).count();
                assert_eq!(told, 1, "cut at {cut}: what was not run must be told");
            }
            let results = world.tool_messages().len();
            assert_eq!(results, expected.len(), "cut at {cut}: one result a call");
        }
    });
}

#[test]
fn a_call_that_ran_is_not_run_again() {
    check(&vec![vec![false, true], vec![false]], OnUnknownOutcome::Report);
}

#[tokio::test]
async fn a_resumed_run_says_so() {
    let world = crash_and_go_on(&vec![vec![false]], 3, OnUnknownOutcome::Report).await;
    let names = world.event_names();
    assert_eq!(names.iter().filter(|name| **name == "RunStarted").count(), 1);
    assert_eq!(names[3], "RunContinued");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn going_on_after_any_crash_repeats_nothing(
        plan in prop::collection::vec(prop::collection::vec(any::<bool>(), 1..4), 1..4),
        retry in any::<bool>(),
    ) {
        check(&plan, if retry { OnUnknownOutcome::Retry } else { OnUnknownOutcome::Report });
    }
}
