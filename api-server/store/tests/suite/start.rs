//! Starts, and what a worker is told.

use cadre_protocol::ids::{BlobDigest, RunId};
use cadre_protocol::journal::Record;
use cadre_protocol::message::Role;
use cadre_protocol::run::{Attachment, RunEnd, RunFailure, RunStatus, Uploads};
use cadre_protocol::tool::{ToolExecution, WorkspaceEffect};
use cadre_store::Store;
use cadre_store::rows::{Claim, NewRun};

use super::Database;
use super::fixtures::*;

pub async fn two_leases_claim_one_head(database: &impl Database) {
    let store = database.open();
    let run_id = accept(&*store, "s").await;
    let old = lease(&*store, "s", "a").await;
    let new = lease(&*store, "s", "b").await;
    let (of_old, of_new) = tokio::join!(store.start(&run_id, &old, now()), store.start(&run_id, &new, now()));
    assert!(of_old.unwrap().is_none());
    assert_eq!(of_new.unwrap().unwrap().epoch, new.epoch);
}

pub async fn a_second_start_under_one_lease_is_the_same_attempt(database: &impl Database) {
    let store = database.open();
    let run_id = accept(&*store, "s").await;
    let lease = lease(&*store, "s", "a").await;
    let (one, two) = tokio::join!(store.start(&run_id, &lease, now()), store.start(&run_id, &lease, now()));
    let (one, two) = (one.unwrap().unwrap(), two.unwrap().unwrap());
    assert!(one.first != two.first, "one of them began it");
    assert_eq!((one.run.attempt, two.run.attempt), (1, 1));
    assert_eq!(one.run.started_at_ms, two.run.started_at_ms);
}

pub async fn a_lost_worker_is_followed_with_the_progress(database: &impl Database) {
    let store = database.open();
    let (run_id, old) = running(&*store, "s").await;
    let tool = ToolExecution { tool_call_id: "c1".into(), tool_name: "shell".into(), ..ToolExecution::default() };
    let entries = vec![
        message(Role::User, "q"),
        message(Role::Assistant, "calling"),
        record(Record::ToolStarted { tool: tool.clone(), idempotent: true }),
    ];
    append(&*store, "s", &run_id, old.epoch, 0, entries).await;
    store.model_call(model_call(&run_id, now(), None)).await.unwrap();
    store.release(&session("s"), &old).await.unwrap();
    let new = lease(&*store, "s", "b").await;
    let started = store.start(&run_id, &new, now()).await.unwrap().unwrap();
    assert_eq!((started.run.attempt, started.epoch, started.first), (2, new.epoch, true));
    let progress = started.progress;
    assert_eq!((progress.next_index, progress.messages.len(), progress.model_calls), (3, 2, 1));
    assert_eq!(progress.tool_calls.len(), 1);
    assert_eq!((&progress.tool_calls[0].tool, progress.tool_calls[0].finished), (&tool, false));
    assert!(progress.tool_calls[0].idempotent);
}

pub async fn history_is_the_newest_completed_runs(database: &impl Database) {
    let store = database.open();
    for number in 0..5 {
        let (run_id, lease) = running(&*store, "s").await;
        let mut entries = vec![message(Role::System, "rules"), message(Role::User, &format!("q{number}"))];
        if number == 3 {
            let failure = RunFailure { error_type: "x".into(), error_id: None, message: "m".into(), retryable: false };
            entries.push(record(Record::Finished(RunEnd::Error(failure))));
        } else {
            entries.push(message(Role::Assistant, &format!("a{number}")));
            entries.push(completed("a"));
        }
        appended(append(&*store, "s", &run_id, lease.epoch, 0, entries).await);
    }
    turn(&*store, "another").await;
    let run_id = accept(&*store, "s").await;
    let started = store.start(&run_id, &lease(&*store, "s", "w").await, now()).await.unwrap().unwrap();
    let texts: Vec<&str> = started.history.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(texts, ["q1", "a1", "q2", "a2", "q4", "a4"], "three runs that completed, without system messages");
    let mut forgetful = agent("helper");
    forgetful.history.runs = 0;
    store.cancel(&run_id, None, "", now()).await.unwrap();
    complete(&*store, "s", &run_id, started.epoch, 0).await;
    let (row, ..) = accepted(&*store, new_run_of("s", forgetful)).await;
    let started = store.start(&row.run_id, &lease(&*store, "s", "w").await, now()).await.unwrap().unwrap();
    assert!(started.history.is_empty());
    assert_eq!(started.run.status, RunStatus::Running);
}

pub async fn effects_come_from_all_runs_of_the_session(database: &impl Database) {
    let store = database.open();
    for number in 0..2 {
        let (run_id, lease) = running(&*store, "s").await;
        let call = |id: &str| ToolExecution {
            tool_call_id: id.into(),
            tool_name: "write_file".into(),
            ..ToolExecution::default()
        };
        let effect = |file: &str| {
            Some(WorkspaceEffect { workspace_id: "w".into(), files: vec![file.into()], ..WorkspaceEffect::default() })
        };
        let finished =
            |id: &str, effect| record(Record::ToolFinished { tool: call(id), effect, unknown_outcome: false });
        let entries = vec![
            record(Record::ToolStarted { tool: call("c1"), idempotent: false }),
            record(Record::ToolStarted { tool: call("c2"), idempotent: false }),
            finished("c2", effect(&format!("{number}-first"))),
            finished("c1", effect(&format!("{number}-second"))),
            finished("c3", None),
            completed("done"),
        ];
        appended(append(&*store, "s", &run_id, lease.epoch, 0, entries).await);
    }
    let run_id = accept(&*store, "s").await;
    let started = store.start(&run_id, &lease(&*store, "s", "w").await, now()).await.unwrap().unwrap();
    let files: Vec<&str> = started.effects.iter().map(|effect| effect.effect.files[0].as_str()).collect();
    assert_eq!(files, ["0-first", "0-second", "1-first", "1-second"]);
    assert_eq!((started.effects[0].tool_call_id.as_str(), started.effects[0].tool_name.as_str()), ("c2", "write_file"));
    let places: Vec<u64> = started.effects.iter().map(|effect| effect.run_seq).collect();
    assert_eq!(places, [1, 1, 2, 2]);
}

/// A run with files; each is its name and its bytes.
fn with_files(session_id: &str, files: &[(&str, &str)]) -> NewRun {
    let mut run = new_run(session_id);
    let file = |(name, bytes): &(&str, &str)| Attachment {
        name: (*name).into(),
        media_type: "text/plain".into(),
        size: bytes.len() as u64,
        digest: BlobDigest::of(bytes.as_bytes()),
    };
    run.input.files = files.iter().map(file).collect();
    run
}

/// A turn with files, to its end.
async fn turn_with(store: &dyn Store, session_id: &str, files: &[(&str, &str)]) -> RunId {
    let run_id = accepted(store, with_files(session_id, files)).await.0.run_id;
    let lease = lease(store, session_id, "w").await;
    store.start(&run_id, &lease, now()).await.unwrap().unwrap();
    complete(store, session_id, &run_id, lease.epoch, 0).await;
    run_id
}

/// What the next run of a session is told, once when a worker waits for it and once when it waits for a worker.
async fn told(store: &dyn Store, session_id: &str) -> Uploads {
    let held = lease(store, session_id, "w").await;
    let claimed = NewRun { claim: Some(Claim::Held(held.clone())), ..with_files(session_id, &[]) };
    let (run, _, started) = accepted(store, claimed).await;
    let of_claim = started.unwrap().uploads;
    let again = lease(store, session_id, "w2").await;
    let of_start = store.start(&run.run_id, &again, now()).await.unwrap().unwrap().uploads;
    assert_eq!(of_claim, of_start);
    complete(store, session_id, &run.run_id, again.epoch, 0).await;
    of_start
}

fn names(uploads: &Uploads) -> Vec<(u64, &str)> {
    uploads.files.iter().map(|upload| (upload.run_seq, upload.file.name.as_str())).collect()
}

pub async fn files_of_earlier_runs_are_named(database: &impl Database) {
    let store = database.open();
    assert!(told(&*store, "s").await.is_empty());
    turn_with(&*store, "s", &[("a", "old"), ("b", "b")]).await;
    turn(&*store, "s").await;
    turn_with(&*store, "s", &[("a", "new")]).await;
    turn_with(&*store, "other", &[("c", "c")]).await;
    let never_started = accepted(&*store, with_files("s", &[("d", "d")])).await.0.run_id;
    store.cancel(&never_started, None, "x", now()).await.unwrap();
    let told = told(&*store, "s").await;
    assert_eq!(names(&told), [(4, "a"), (2, "b")], "one of each name, the newest first");
    assert_eq!((told.files[0].file.digest.clone(), told.truncated), (BlobDigest::of(b"new"), false));
}

pub async fn only_the_newest_files_are_named(database: &impl Database) {
    let store = database.open();
    let all: Vec<String> = (0..=Uploads::MAX_FILES).map(|number| format!("f{number:03}")).collect();
    for few in all.chunks(30) {
        let files: Vec<_> = few.iter().map(|name| (name.as_str(), "x")).collect();
        turn_with(&*store, "s", &files).await;
    }
    let told = told(&*store, "s").await;
    assert_eq!((told.files.len(), told.truncated), (Uploads::MAX_FILES, true));
    assert_eq!((names(&told)[0], names(&told)[Uploads::MAX_FILES - 1]), ((4, "f090"), (1, "f028")));
}

pub async fn a_run_that_is_resumed_has_its_files_from_where_it_was(database: &impl Database) {
    let store = database.open();
    let failed = accepted(&*store, with_files("s", &[("a", "first")])).await.0.run_id;
    let held = lease(&*store, "s", "w").await;
    store.start(&failed, &held, now()).await.unwrap().unwrap();
    append(&*store, "s", &failed, held.epoch, 0, vec![message(Role::User, "q")]).await;
    fail(&*store, "s", &failed, held.epoch, 1).await;
    turn_with(&*store, "s", &[("a", "second")]).await;
    super::resumption::resumed(&*store, &failed, 1, None).await;
    let held = lease(&*store, "s", "w").await;
    let started = store.start(&failed, &held, now()).await.unwrap().unwrap();
    assert_eq!(names(&started.uploads), [(2, "a")], "its own are its input");
    complete(&*store, "s", &failed, started.epoch, started.progress.next_index).await;
    let told = told(&*store, "s").await;
    assert_eq!(names(&told), [(2, "a")], "it did not bring its file again");
    store.fork_session(super::branches::copy("s", "t")).await.unwrap();
    assert_eq!(self::told(&*store, "t").await, told, "a copy has them too");
}
