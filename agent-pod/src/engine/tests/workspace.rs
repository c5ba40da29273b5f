use cadre_protocol::agent::OnWorkspaceLoss;
use cadre_protocol::exec::ExecBody;
use cadre_protocol::ids::{BlobDigest, RunId};
use cadre_protocol::journal::{Record, RecordedEffect};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::run::{Attachment, RunEnd};
use cadre_protocol::tool::WorkspaceEffect;
use cadre_protocol::worker::Assignment;

use super::super::fakes::{World, asks, assignment, says};
use super::super::ports::Lost;
use super::run;

fn with_effect(workspace: &str) -> Assignment {
    let files = vec!["a.txt".to_owned(), "b.txt".to_owned()];
    let effect = WorkspaceEffect { workspace_id: workspace.into(), files, ..WorkspaceEffect::default() };
    let run_id = RunId::new("earlier").unwrap();
    let effects =
        vec![RecordedEffect { run_id, run_seq: 1, tool_call_id: "9".into(), tool_name: "shell".into(), effect }];
    Assignment { effects, ..assignment("hi") }
}

fn lossy(script: Vec<super::super::ports::ModelEvent>) -> World {
    World { missing: vec!["a.txt".into()], ..World::with([script]) }
}

#[tokio::test]
async fn the_model_learns_what_a_new_workspace_lacks_and_only_once() {
    let (_, world) = run(lossy(says("ok")), with_effect("old")).await;
    assert_eq!(world.event_names()[..3], ["RunStarted", "CustomEvent", "ModelRequestStarted"]);
    assert_eq!(world.events()[1]["files"], serde_json::json!(["a.txt"]));
    let messages = world.requests.lock().unwrap()[0].messages.clone();
    let note = messages.last().unwrap().clone();
    assert!(note.role == Role::User && note.content.contains("- a.txt"), "{note:?}");

    let mut next = with_effect("old");
    next.history = vec![Message::text(Role::User, "earlier", 0), note];
    let (_, world) = run(lossy(says("ok")), next).await;
    assert!(!world.event_names().contains(&"CustomEvent"));
}

#[tokio::test]
async fn the_same_workspace_is_no_loss() {
    let (_, world) = run(lossy(says("ok")), with_effect("w1")).await;
    assert!(!world.event_names().contains(&"CustomEvent"));
}

#[tokio::test]
async fn what_the_agent_removed_is_no_loss() {
    let mut strict = with_effect("old");
    strict.agent.on_workspace_loss = OnWorkspaceLoss::Fail;
    let mut removal = strict.effects[0].clone();
    removal.effect = WorkspaceEffect { files: Vec::new(), removed: vec!["a.txt".into()], ..removal.effect };
    strict.effects.push(removal);
    let (_, world) = run(lossy(says("ok")), strict).await;
    assert!(matches!(world.last_record(), Some(Record::Finished(RunEnd::Completed { .. }))));
    assert!(!world.event_names().contains(&"CustomEvent"));
}

#[tokio::test]
async fn a_loss_can_end_the_run() {
    let mut strict = with_effect("old");
    strict.agent.on_workspace_loss = OnWorkspaceLoss::Fail;
    let (_, world) = run(lossy(vec![]), strict).await;
    assert!(
        matches!(world.last_record(), Some(Record::Finished(RunEnd::Error(failure))) if failure.error_type == "workspace_lost")
    );
}

fn file(name: &str, media_type: &str, bytes: &[u8]) -> Attachment {
    Attachment {
        name: name.into(),
        media_type: media_type.into(),
        size: bytes.len() as u64,
        digest: BlobDigest::of(bytes),
    }
}

#[tokio::test]
async fn files_are_staged_in_pieces_before_the_model_is_asked() {
    let bytes = vec![7; (1 << 20) + 10];
    let mut filed = assignment("look");
    filed.input.files = vec![file("data.bin", "application/octet-stream", &bytes)];
    let (_, world) = run(World { blob: bytes, ..World::with([says("ok")]) }, filed).await;
    let staged = world.executed.lock().unwrap().clone();
    assert_eq!(staged.len(), 5);
    assert!(staged[4].starts_with("stage uploads/data.bin 1048576 "), "{staged:?}");
    let asked = world.requests.lock().unwrap()[0].messages.last().unwrap().content.clone();
    assert!(asked.starts_with("look\n\n[File in the workspace: uploads/data.bin"), "{asked}");
}

#[tokio::test]
async fn without_a_sandbox_text_files_are_shown() {
    let mut filed = assignment("look");
    filed.input.files = vec![file("a.csv", "text/csv; charset=utf-8", b"x,y"), file("b.png", "image/png", b"x,y")];
    let (_, world) = run(World { blob: b"x,y".to_vec(), sandbox: false, ..World::with([says("ok")]) }, filed).await;
    let asked = world.requests.lock().unwrap()[0].messages.last().unwrap().content.clone();
    assert!(asked.contains("\nx,y\n[End of file a.csv]"), "{asked}");
    assert!(asked.contains("b.png") && asked.contains("can't be shown"), "{asked}");
}

fn lost() -> Result<ExecBody, Lost> {
    Err(Lost { reason: "the sandbox was lost".into(), may_have_happened: true })
}

#[tokio::test]
async fn a_lost_sandbox_leaves_an_unknown_outcome() {
    let world = World::with([asks(&[("1", "shell", r#"{"command":"pay"}"#)]), says("ok")]);
    world.answers.lock().unwrap().push_back(lost());
    let (_, world) = run(world, assignment("hi")).await;
    assert_eq!(*world.executed.lock().unwrap(), ["pay"]);
    assert_eq!(world.event_names()[4..7], ["ToolCallCompleted", "ToolCallError", "CustomEvent"]);
    assert_eq!(world.events()[6]["type"], "tool_outcome_unknown");
    assert!(world.tool_messages()[0].content.contains("unknown: the sandbox was lost"));
}

#[tokio::test]
async fn a_reading_call_is_repeated_when_the_sandbox_is_back() {
    let world = World::with([asks(&[("1", "read_file", r#"{"path":"a"}"#)]), says("ok")]);
    world.answers.lock().unwrap().push_back(lost());
    let (_, world) = run(world, assignment("hi")).await;
    assert_eq!(*world.executed.lock().unwrap(), ["read a", "read a"]);
    assert!(!world.tool_messages()[0].tool_call_error);
}
