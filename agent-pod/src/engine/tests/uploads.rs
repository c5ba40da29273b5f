//! Files of earlier runs, in workspaces old and new.

use std::sync::Arc;

use cadre_protocol::agent::OnWorkspaceLoss;
use cadre_protocol::ids::{BlobDigest, RunId};
use cadre_protocol::journal::{Record, RecordedEffect};
use cadre_protocol::run::{Attachment, RunEnd, Upload, Uploads};
use cadre_protocol::tool::WorkspaceEffect;
use cadre_protocol::worker::Assignment;

use super::super::fakes::{World, assignment, says};
use super::super::uploads::MAX_BYTES;
use super::run;

const DATA: &str = "uploads/data.csv";

fn file(name: &str) -> Attachment {
    Attachment { name: name.into(), media_type: "text/csv".into(), size: 3, digest: BlobDigest::of(name.as_bytes()) }
}

/// A second turn: each of these came with the first.
fn second(files: &[Attachment]) -> Assignment {
    let files = files.iter().map(|file| Upload { run_seq: 1, file: file.clone() }).collect();
    Assignment { uploads: Uploads { files, truncated: false }, ..assignment("go on") }
}

/// What a call of this run of the line did to `data.csv`, in a workspace that is gone.
fn touched(run_seq: u64, files: &[&str], removed: &[&str]) -> RecordedEffect {
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    RecordedEffect {
        run_id: RunId::new(format!("run-{run_seq}")).unwrap(),
        run_seq,
        tool_call_id: "9".into(),
        tool_name: "shell".into(),
        effect: WorkspaceEffect {
            workspace_id: "old".into(),
            files: paths(files),
            removed: paths(removed),
            truncated: false,
        },
    }
}

fn world(missing: &[&str]) -> World {
    let missing = missing.iter().map(|path| (*path).to_owned()).collect();
    World { missing, blob: b"x,y".to_vec(), ..World::with([says("ok")]) }
}

fn staged(world: &World) -> Vec<String> {
    world.executed.lock().unwrap().clone()
}

fn note(world: &World) -> String {
    world.requests.lock().unwrap()[0].messages.last().unwrap().content.clone()
}

#[tokio::test]
async fn a_new_workspace_gets_the_files_of_earlier_turns() {
    let (_, new) = run(world(&[DATA]), second(&[file("data.csv"), file("other.csv")])).await;
    assert_eq!(staged(&new), ["stage uploads/data.csv 0 4"], "the other one is there, perhaps changed");
    assert!(!new.event_names().contains(&"CustomEvent"), "nothing is lost");
}

#[tokio::test]
async fn a_warm_turn_neither_brings_them_nor_asks_after_them() {
    let mut first = assignment("look");
    first.input.files = vec![file("data.csv")];
    let (_, before) = run(world(&[]), first).await;
    assert_eq!(staged(&before).len(), 1);

    let warm = World { brought: Arc::clone(&before.brought), ..world(&[DATA]) };
    let (_, warm) = run(warm, second(&[file("data.csv")])).await;
    assert!(staged(&warm).is_empty() && warm.looks.lock().unwrap().is_empty());

    let cold = World { brought: Arc::clone(&before.brought), workspace_id: "w2".into(), ..world(&[DATA]) };
    let (_, cold) = run(cold, second(&[file("data.csv")])).await;
    assert_eq!(staged(&cold).len(), 1, "another workspace is another one");
}

#[tokio::test]
async fn a_file_of_the_same_name_takes_its_place() {
    let mut again = second(&[file("data.csv")]);
    again.input.files = vec![file("data.csv")];
    let (_, new) = run(world(&[DATA]), again).await;
    assert_eq!(staged(&new).len(), 1);
}

#[tokio::test]
async fn what_the_agent_removed_stays_away_until_it_is_uploaded_again() {
    let mut removed = second(&[file("data.csv")]);
    removed.effects = vec![touched(1, &[], &[DATA])];
    let (_, world_) = run(world(&[DATA]), removed.clone()).await;
    assert!(staged(&world_).is_empty() && !world_.event_names().contains(&"CustomEvent"));
    removed.uploads.files[0].run_seq = 2;
    let (_, world_) = run(world(&[DATA]), removed).await;
    assert_eq!(staged(&world_).len(), 1);
}

#[tokio::test]
async fn the_model_learns_that_changes_to_an_upload_are_gone() {
    let mut changed = second(&[file("data.csv")]);
    changed.effects = vec![touched(1, &[DATA], &[])];
    let (_, reset) = run(world(&[DATA]), changed.clone()).await;
    assert_eq!(staged(&reset).len(), 1);
    assert_eq!(reset.events()[1]["reset"], serde_json::json!([DATA]));
    assert!(note(&reset).contains("as they were uploaded, without later changes:\n- uploads/data.csv"));

    changed.agent.on_workspace_loss = OnWorkspaceLoss::Fail;
    let (_, strict) = run(world(&[DATA]), changed).await;
    assert!(staged(&strict).is_empty(), "the first version would hide the loss from the next turn");
    assert!(
        matches!(strict.last_record(), Some(Record::Finished(RunEnd::Error(failure))) if failure.error_type == "workspace_lost")
    );
}

#[tokio::test]
async fn what_can_not_be_brought_is_told_as_lost() {
    let files = [file("data.csv"), Attachment { size: MAX_BYTES, ..file("huge.bin") }];
    let unreadable = Some(file("data.csv").digest);
    let lossy = World { unreadable, ..world(&[DATA, "uploads/huge.bin"]) };
    let (_, told) = run(lossy, second(&files)).await;
    assert!(staged(&told).is_empty());
    assert_eq!(told.events()[1]["files"], serde_json::json!([DATA, "uploads/huge.bin"]));
    assert!(note(&told).contains("- uploads/data.csv\n- uploads/huge.bin"), "{}", note(&told));

    let warm = World { brought: Arc::clone(&told.brought), ..world(&[DATA, "uploads/huge.bin"]) };
    let (_, next) = run(warm, second(&files)).await;
    assert_eq!(*next.looks.lock().unwrap(), [[DATA]], "what could not be had is tried again, what is too large is not");
    assert_eq!(staged(&next).len(), 1);
}

#[tokio::test]
async fn a_turn_that_is_resumed_elsewhere_gets_its_own_files_and_those_before() {
    let mut resumed = second(&[file("data.csv")]);
    resumed.attempt = 2;
    resumed.input.files = vec![file("own.csv"), file("gone.csv")];
    let gone = touched(2, &[], &["uploads/gone.csv"]);
    resumed.effects = vec![RecordedEffect { run_id: resumed.run_id.clone(), ..gone }];
    let (_, new) = run(world(&[DATA, "uploads/own.csv", "uploads/gone.csv"]), resumed).await;
    assert_eq!(staged(&new), ["stage uploads/own.csv 0 4", "stage uploads/data.csv 0 4"]);
    assert_eq!(new.looks.lock().unwrap().first().map(Vec::len), Some(3), "all are asked after at once");
}
