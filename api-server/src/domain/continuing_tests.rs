use cadre_protocol::ids::{ComponentRef, Revision, SessionId};
use cadre_protocol::message::ToolCall;
use cadre_protocol::run::RunMetrics;
use cadre_store::rows::Lineage;
use serde_json::Map;

use super::*;

fn run(status: RunStatus) -> RunRow {
    RunRow {
        run_id: RunId::new("r").unwrap(),
        session_id: SessionId::new("s").unwrap(),
        component: ComponentRef::agent("default", "helper"),
        principal: Principal("key:test".into()),
        user_id: None,
        origin: Origin::Http,
        status,
        revision: Revision::of(b"x"),
        attempt: 1,
        next_index: 9,
        input: RunInput::default(),
        content: None,
        content_type: None,
        failure: None,
        cancellation_stage: None,
        cancel_requested: false,
        metadata: Map::new(),
        metrics: RunMetrics::default(),
        timeout_seconds: None,
        created_at_ms: 0,
        started_at_ms: None,
        finished_at_ms: None,
        paused_ms: 0,
        lineage: Lineage::default(),
    }
}

/// user, call, result, answer.
fn messages() -> Vec<Message> {
    let call = ToolCall { id: "c".into(), name: "shell".into(), arguments: "{}".into() };
    vec![
        Message::text(Role::User, "q", 0),
        Message { tool_calls: vec![call.clone()], ..Message::text(Role::Assistant, "", 0) },
        Message::tool_result(&call, "r", false, 0),
        Message::text(Role::Assistant, "a", 0),
    ]
}

fn fork(keep: usize) -> Plan {
    Plan::Fork { keep, input: None, regenerate: None }
}

#[test]
fn a_run_that_failed_goes_on_and_all_others_are_left_as_they_are() {
    use RunStatus::{Completed, Error, Regenerated};
    let messages = messages();
    let index = |index| Continue { from: ContinueFrom::Index(index), ..Continue::default() };
    let input = Continue { input: Some("more".into()), ..Continue::default() };
    let table = [
        (Completed, Continue::default(), fork(4)),
        (Regenerated, Continue::default(), fork(4)),
        (Completed, index(2), fork(1)),
        (Completed, index(0), fork(0)),
        (Completed, Continue { from: ContinueFrom::LastUser, ..Continue::default() }, fork(1)),
        (Completed, input.clone(), Plan::Fork { keep: 4, input: Some("more".into()), regenerate: None }),
        (Error, Continue::default(), Plan::Resume { input: None }),
        (Error, index(4), Plan::Resume { input: None }),
        (Error, input, Plan::Resume { input: Some("more".into()) }),
        (Error, Continue { fork: true, ..Continue::default() }, fork(4)),
        (Error, index(3), fork(3)),
    ];
    for (status, wish, expected) in table {
        assert_eq!(plan(&run(status), &messages, &wish).unwrap(), expected, "{status:?} {wish:?}");
    }
    let object = RunRow { origin: Origin::RunObject { uid: "u".into(), name: "n".into() }, ..run(Error) };
    assert_eq!(plan(&object, &messages, &Continue::default()).unwrap(), fork(4), "its end was told to the object");
}

#[test]
fn an_answer_given_anew_replaces_the_old_one_unless_told_otherwise() {
    let again = Continue { regenerate: true, ..Continue::default() };
    let word = Continue { additional_instructions: Some("shorter".into()), ..again.clone() };
    let beside = Continue { replace_original: Some(false), ..again.clone() };
    for (wish, input, replace) in [(again, None, true), (word, Some("shorter".to_owned()), true), (beside, None, false)]
    {
        let expected = Plan::Fork { keep: 3, input, regenerate: Some(replace) };
        assert_eq!(plan(&run(RunStatus::Completed), &messages(), &wish).unwrap(), expected, "{wish:?}");
    }
}

#[test]
fn refusals_say_what_is_wrong() {
    let with = |wish: Continue, status| plan(&run(status), &messages(), &wish).unwrap_err();
    for (status, reason) in [
        (RunStatus::Cancelled, "cannot continue run r: run is cancelled"),
        (RunStatus::Running, "cannot continue run r: it has not ended (RUNNING)"),
    ] {
        let error = with(Continue::default(), status);
        assert_eq!((error.to_string().as_str(), error.code().status()), (reason, 409));
    }
    let answers = vec![Answer { call_id: Some("c".into()), ..Answer::default() }];
    let answered = Continue { answers, ..Continue::default() };
    let tools = with(answered.clone(), RunStatus::Completed);
    assert!(tools.to_string().contains("not paused") && tools.code().status() == 409, "{tools}");
    let fork = with(Continue { fork: true, ..answered.clone() }, RunStatus::Paused);
    assert!(fork.to_string().contains("has not ended (PAUSED)") && fork.code().status() == 409, "{fork}");
    let some = || Some("x".to_owned());
    let added = with(Continue { input: some(), ..answered.clone() }, RunStatus::Paused);
    assert_eq!(added.code().status(), 400);
    for (status, expected) in [(RunStatus::Paused, Plan::Answer), (RunStatus::Running, Plan::Attach)] {
        assert_eq!(plan(&run(status), &messages(), &answered).unwrap(), expected);
    }
    for wish in [
        Continue { input: some(), additional_instructions: some(), regenerate: true, ..Continue::default() },
        Continue { additional_instructions: some(), ..Continue::default() },
        Continue { replace_original: Some(true), ..Continue::default() },
        Continue { regenerate: true, fork: true, ..Continue::default() },
        Continue { regenerate: true, from: ContinueFrom::Index(1), ..Continue::default() },
        Continue { from: ContinueFrom::Index(5), ..Continue::default() },
        Continue { from: ContinueFrom::Index(-1), ..Continue::default() },
    ] {
        assert_eq!(with(wish.clone(), RunStatus::Completed).code().status(), 400, "{wish:?}");
    }
    let unborn = Continue { input: some(), ..Continue::default() };
    assert_eq!(plan(&run(RunStatus::Error), &[], &unborn).unwrap(), Plan::Resume { input: some() });
    assert_eq!(plan(&run(RunStatus::Error), &[], &Continue::default()).unwrap(), Plan::Resume { input: None });
}
