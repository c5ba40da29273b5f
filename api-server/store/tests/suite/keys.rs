//! Keys and questions of runs that go on.

use cadre_protocol::message::Role;
use cadre_protocol::run::{RunInput, RunStatus};
use cadre_store::branches::{KeyOf, Keyed, ResumeOutcome, Resumption};
use cadre_store::rows::{AcceptOutcome, IdempotencyKey, NewRun, Origin};

use super::Database;
use super::fixtures::*;
use super::resumption::resumption;

fn key(text: &str, body: &str) -> IdempotencyKey {
    IdempotencyKey { key: text.into(), body_sha256: body.into() }
}

/// A key of the caller of the fixtures' runs.
fn of(text: &str, body: &str) -> KeyOf {
    let component = agent("helper").component;
    KeyOf { key: key(text, body), principal: principal(), user_id: Some("ada".into()), component, origin: Origin::Http }
}

pub async fn a_key_resumes_a_run_once(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    append(&*store, "s", &run_id, held.epoch, 0, vec![message(Role::User, "q")]).await;
    fail(&*store, "s", &run_id, held.epoch, 1).await;
    let keyed = |body: &str| Resumption { key: Some(of("k", body)), ..resumption(&run_id, 1, None) };
    assert!(store.keyed(of("k", "h")).await.unwrap().is_none());
    assert!(matches!(store.resume(keyed("h")).await.unwrap(), ResumeOutcome::Resumed { .. }));
    let ResumeOutcome::Replayed(run) = store.resume(keyed("h")).await.unwrap() else { panic!("not replayed") };
    assert_eq!((&run.run_id, run.status), (&run_id, RunStatus::Pending));
    assert!(matches!(store.resume(keyed("other")).await.unwrap(), ResumeOutcome::IdempotencyConflict));
    assert!(matches!(store.keyed(of("k", "h")).await.unwrap(), Some(Keyed::Run(run)) if run.run_id == run_id));
    assert!(matches!(store.keyed(of("k", "other")).await.unwrap(), Some(Keyed::Conflict)));
    let stranger = KeyOf { user_id: None, ..of("k", "h") };
    assert!(store.keyed(stranger).await.unwrap().is_none(), "another user's are apart");
    let new = NewRun { idempotency: Some(key("k", "new")), ..new_run("t") };
    assert!(matches!(store.accept(new).await.unwrap(), AcceptOutcome::IdempotencyConflict), "one scope");
}

pub async fn a_question_takes_the_place_of_one_that_nobody_has_seen(database: &impl Database) {
    let store = database.open();
    let (run_id, held) = running(&*store, "s").await;
    fail(&*store, "s", &run_id, held.epoch, 0).await;
    let question = RunInput { text: "both".into(), ..RunInput::default() };
    let asked = Resumption { question: Some(question.clone()), ..resumption(&run_id, 0, None) };
    let ResumeOutcome::Resumed { run, .. } = store.resume(asked).await.unwrap() else { panic!("not resumed") };
    assert_eq!(run.input, question);
    let lease = lease(&*store, "s", "w").await;
    let started = store.start(&run_id, &lease, now()).await.unwrap().unwrap();
    assert_eq!((started.run.input, started.progress.messages.len()), (question, 0));
}
