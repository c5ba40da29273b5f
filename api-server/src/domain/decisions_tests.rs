use cadre_protocol::message::{Role, ToolCall};
use serde_json::json;

use super::*;

fn tool(id: &str) -> ToolExecution {
    let tool_args = json!({"command": "rm x"}).as_object().unwrap().clone();
    ToolExecution { tool_call_id: id.into(), tool_name: "shell".into(), tool_args, ..ToolExecution::default() }
}

fn row(tool: ToolExecution) -> ApprovalRow {
    ApprovalRow { requirement: RunRequirement::new(tool, 0), is_open: true, version: 4, position: 7, decided_by: None }
}

fn confirmation(id: &str) -> ApprovalRow {
    row(ToolExecution { requires_confirmation: Some(true), ..tool(id) })
}

fn field(name: &str, field_type: &str) -> UserInputField {
    UserInputField { name: name.into(), field_type: field_type.into(), description: None, value: None }
}

fn input(id: &str) -> ApprovalRow {
    let fields = vec![field("cwd", "str"), field("timeout_seconds", "int")];
    row(ToolExecution { requires_user_input: Some(true), user_input_schema: Some(fields), ..tool(id) })
}

fn external(id: &str) -> ApprovalRow {
    row(ToolExecution { external_execution_required: Some(true), ..tool(id) })
}

fn about(id: &str) -> Answer {
    let arguments = Some(tool(id).tool_args);
    Answer { call_id: Some(id.into()), tool_name: Some("shell".into()), arguments, ..Answer::default() }
}

fn says(id: &str, yes: bool) -> Answer {
    Answer { confirmed: Some(yes), ..about(id) }
}

fn values(id: &str, pairs: &[(&str, Value)]) -> Answer {
    Answer { values: pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(), ..about(id) }
}

fn decided(row: ApprovalRow, answer: &Answer) -> ApprovalRow {
    let requirement = merge(std::slice::from_ref(&row), &[], std::slice::from_ref(answer)).unwrap().remove(0).1;
    assert!(requirement.verdict().is_some());
    ApprovalRow { requirement, is_open: false, version: 5, ..row }
}

#[test]
fn answers_become_decisions() {
    use cadre_protocol::requirement::Verdict::{Approved, Executed, Rejected};
    let full = [("cwd", json!("src")), ("timeout_seconds", json!(5))];
    for (row, answer, verdict) in [
        (confirmation("c"), says("c", true), Some(Approved)),
        (confirmation("c"), says("c", false), Some(Rejected)),
        (input("c"), values("c", &full), Some(Approved)),
        (input("c"), Answer { answered: Some(true), ..values("c", &full[..1]) }, Some(Approved)),
        (input("c"), values("c", &full[..1]), None),
        (input("c"), says("c", false), Some(Rejected)),
        (external("c"), Answer { result: Some("done".into()), ..about("c") }, Some(Executed)),
        (external("c"), says("c", false), Some(Rejected)),
    ] {
        let changes = merge(std::slice::from_ref(&row), &[], std::slice::from_ref(&answer)).unwrap();
        assert_eq!((changes[0].0, changes[0].1.verdict()), (4, verdict), "{answer:?}");
    }
    for (row, silent) in [
        (confirmation("c"), about("c")),
        (input("c"), about("c")),
        (input("c"), says("c", true)),
        (external("c"), says("c", true)),
    ] {
        assert_eq!(merge(&[row], &[], &[silent]).unwrap(), []);
    }
}

#[test]
fn values_of_the_user_become_arguments() {
    let answer = values("c", &[("cwd", json!("src")), ("timeout_seconds", json!(5))]);
    let told = merge(&[input("c")], &[], &[answer]).unwrap().remove(0).1;
    let arguments = Value::Object(told.tool_execution.tool_args.clone());
    assert_eq!(arguments, json!({"command": "rm x", "cwd": "src", "timeout_seconds": 5}));
    assert_eq!(told.user_input_schema, told.tool_execution.user_input_schema);
    let partial = merge(&[input("c")], &[], &[values("c", &[("cwd", json!("src"))])]).unwrap().remove(0).1;
    assert_eq!(Value::Object(partial.tool_execution.tool_args.clone()), json!({"command": "rm x"}));
    let kept = ApprovalRow { requirement: partial, ..input("c") };
    let rest = merge(&[kept], &[], &[values("c", &[("timeout_seconds", json!(5))])]).unwrap().remove(0).1;
    assert_eq!(rest.tool_execution.tool_args, told.tool_execution.tool_args, "they are merged");
}

#[test]
fn an_answer_counts_only_for_what_was_asked() {
    let rows = [confirmation("c"), input("i")];
    let changed = Answer { arguments: json!({"command": "rm y"}).as_object().cloned(), ..says("c", true) };
    let other = Answer { tool_name: Some("http".into()), ..says("c", true) };
    let more = Answer { arguments: json!({"command": "rm x", "cwd": "a"}).as_object().cloned(), ..says("c", true) };
    for wrong in [
        changed,
        other,
        more,
        says("unknown", true),
        Answer { requirement_id: Some("unknown".into()), confirmed: Some(true), ..Answer::default() },
        values("i", &[("nothing", json!("x"))]),
        values("i", &[("timeout_seconds", json!("5"))]),
        values("i", &[("cwd", json!(["src"]))]),
    ] {
        assert!(matches!(merge(&rows, &[], std::slice::from_ref(&wrong)), Err(Refusal::Wrong(_))), "{wrong:?}");
    }
    // A client sends the arguments back with the values that it has filled in.
    let filled = json!({"command": "rm x", "cwd": "src"}).as_object().cloned();
    let filled = Answer { arguments: filled, ..values("i", &[("cwd", json!("src"))]) };
    assert_eq!(merge(&rows, &[], &[filled]).unwrap().len(), 1);
    let bare = Answer { call_id: Some("c".into()), confirmed: Some(true), ..Answer::default() };
    assert_eq!(merge(&rows, &[], &[bare]).unwrap().len(), 1, "nothing was changed");
    let by_id =
        Answer { requirement_id: Some(rows[0].requirement.id.clone()), confirmed: Some(true), ..Answer::default() };
    assert_eq!(merge(&rows, &[], &[by_id]).unwrap().len(), 1);
}

#[test]
fn calls_that_never_waited_may_be_sent_back() {
    let call = ToolCall { id: "free".into(), name: "shell".into(), arguments: "{}".into() };
    let messages = [Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "", 0) }];
    assert_eq!(merge(&[confirmation("c")], &messages, &[about("free")]).unwrap(), []);
}

#[test]
fn a_decision_stands() {
    let yes = decided(confirmation("c"), &says("c", true));
    let no = decided(input("i"), &says("i", false));
    let done = decided(external("e"), &Answer { result: Some("done".into()), ..about("e") });
    let rows = [yes, no, done];
    for (answer, same) in [
        (says("c", true), true),
        (about("c"), true),
        (says("c", false), false),
        (says("i", false), true),
        (says("i", true), false),
        (values("i", &[("cwd", json!("src"))]), false),
        (Answer { result: Some("done".into()), ..about("e") }, true),
        (Answer { result: Some("other".into()), ..about("e") }, false),
        (says("e", false), false),
    ] {
        let merged = merge(&rows, &[], std::slice::from_ref(&answer));
        assert_eq!(merged.is_ok_and(|changes| changes.is_empty()), same, "{answer:?}");
    }
    assert_eq!(repeated(&rows, &[], &[says("c", true), says("i", false)]), Some(7));
    assert_eq!(repeated(&rows, &[], &[about("c")]), None, "nothing was said");
    assert_eq!(repeated(&rows, &[], &[says("c", false)]), None);
}
