//! Sessions that clients list, make and change.

use cadre_protocol::ids::ComponentRef;
use cadre_store::rows::sessions::{NewSession, SessionEdit, SessionFilter, SessionOrder};
use cadre_store::rows::{AcceptOutcome, NewRun, Principal};
use serde_json::{Map, Value, json};

use super::Database;
use super::fixtures::*;

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn bare(id: &str) -> NewSession {
    NewSession {
        session_id: session(id),
        component: None,
        principal: principal(),
        user_id: None,
        name: String::new(),
        state: Map::new(),
        metadata: Map::new(),
        at_ms: now(),
    }
}

pub async fn sessions_are_filtered_ordered_and_paged(database: &impl Database) {
    let store = database.open();
    accept(&*store, "a").await;
    accepted(&*store, new_run_of("b", agent("other"))).await;
    accepted(&*store, NewRun { principal: Principal("key:other".into()), user_id: None, ..new_run("c") }).await;
    store
        .edit(&session("b"), None, SessionEdit { name: Some("100%_Sure".into()), ..SessionEdit::default() }, now())
        .await
        .unwrap();
    accept(&*store, "a").await;
    let ids = async |filter: SessionFilter| {
        let (rows, total) = store.sessions(filter).await.unwrap();
        (rows.into_iter().map(|row| row.session_id.to_string()).collect::<Vec<_>>(), total)
    };
    let all = SessionFilter { limit: 10, ..SessionFilter::default() };
    let found = |ids: &[&str], total| (ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>(), total);
    assert_eq!(ids(all.clone()).await, found(&["c", "b", "a"], 3));
    assert_eq!(ids(SessionFilter { ascending: true, limit: 2, ..all.clone() }).await, found(&["a", "b"], 3));
    let own = SessionFilter { principal: Some(principal()), ..all.clone() };
    assert_eq!(ids(SessionFilter { offset: 1, ..own.clone() }).await, found(&["a"], 2));
    assert_eq!(ids(SessionFilter { order: SessionOrder::Updated, ..own.clone() }).await, found(&["a", "b"], 2));
    assert_eq!(ids(SessionFilter { order: SessionOrder::Name, ascending: true, ..own }).await, found(&["b", "a"], 2));
    let component = Some(ComponentRef::agent("default", "other"));
    assert_eq!(ids(SessionFilter { component, ..all.clone() }).await, found(&["b"], 1));
    assert_eq!(ids(SessionFilter { user_id: Some("ada".into()), ..all.clone() }).await, found(&["b", "a"], 2));
    for (part, expected) in [("%_s", &["b"][..]), ("HELLO", &["c", "a"]), ("%%", &[]), ("' or 1", &[])] {
        let filter = SessionFilter { name_part: Some(part.into()), ..all.clone() };
        assert_eq!(ids(filter).await, found(expected, expected.len() as u64), "{part}");
    }
}

pub async fn a_session_is_changed_in_parts(database: &impl Database) {
    let store = database.open();
    accept(&*store, "a").await;
    let before = store.session(&session("a")).await.unwrap().unwrap();
    assert_eq!((before.name.as_str(), before.summary.clone()), ("Hello there", None));
    let at_ms = now();
    let edit = SessionEdit {
        state: Some(object(json!({"a": 1}))),
        summary: Some(object(json!({"summary": "short"}))),
        ..SessionEdit::default()
    };
    let edited = store.edit(&session("a"), None, edit, at_ms).await.unwrap().unwrap();
    assert_eq!((&edited.name, edited.updated_at_ms), (&before.name, at_ms));
    assert_eq!((edited.state.clone(), edited.metadata.clone()), (object(json!({"a": 1})), before.metadata));
    let renamed = SessionEdit { name: Some("Budget".into()), metadata: Some(Map::new()), ..SessionEdit::default() };
    let renamed = store.edit(&session("a"), None, renamed, now()).await.unwrap().unwrap();
    assert_eq!((renamed.name.as_str(), renamed.state, renamed.summary), ("Budget", edited.state, edited.summary));
    accept(&*store, "a").await;
    assert_eq!(store.session(&session("a")).await.unwrap().unwrap().name, "Budget");
    assert_eq!(store.edit(&session("none"), None, SessionEdit::default(), now()).await.unwrap(), None);
}

pub async fn a_session_without_a_run_takes_what_it_lacks_from_the_first(database: &impl Database) {
    let store = database.open();
    let made = store.create(NewSession { state: object(json!({"a": 1, "b": 1})), ..bare("s") }).await.unwrap().unwrap();
    assert_eq!((made.component.clone(), made.name.as_str(), made.user_id.clone()), (None, "", None));
    assert_eq!(store.create(bare("s")).await.unwrap(), None, "the id is taken");
    let run = NewRun { session_state: object(json!({"b": 2})), ..new_run("s") };
    let (run, before, _) = accepted(&*store, run).await;
    assert_eq!((before, run.session_id.as_str()), (None, "s"));
    let row = store.session(&session("s")).await.unwrap().unwrap();
    assert_eq!((row.component.unwrap(), row.name.as_str()), (ComponentRef::agent("default", "helper"), "Hello there"));
    assert_eq!((row.user_id.as_deref(), row.state), (Some("ada"), object(json!({"a": 1, "b": 2}))));
    assert_eq!(row.created_at_ms, made.created_at_ms);
    let other = store.accept(new_run_of("s", agent("other"))).await.unwrap();
    assert!(matches!(other, AcceptOutcome::OtherComponent(_)), "the first run's agent has it now");
}

pub async fn a_session_that_was_made_keeps_what_it_was_given(database: &impl Database) {
    let store = database.open();
    let component = Some(ComponentRef::agent("default", "other"));
    let new = NewSession { component, name: "Mine".into(), user_id: Some("bob".into()), ..bare("s") };
    store.create(new).await.unwrap().unwrap();
    assert!(matches!(store.accept(new_run("s")).await.unwrap(), AcceptOutcome::OtherComponent(_)));
    accepted(&*store, new_run_of("s", agent("other"))).await;
    let row = store.session(&session("s")).await.unwrap().unwrap();
    assert_eq!((row.component.unwrap().name.as_str(), row.name.as_str()), ("other", "Mine"));
    assert_eq!(row.user_id.as_deref(), Some("bob"));
    let foreign = NewRun { principal: Principal("key:other".into()), ..new_run("s") };
    assert!(matches!(store.accept(foreign).await.unwrap(), AcceptOutcome::ForeignSession));
    assert_eq!(store.create(NewSession { principal: Principal("key:other".into()), ..bare("s") }).await.unwrap(), None);
}

pub async fn a_part_of_a_name_means_the_same_letters_everywhere(database: &impl Database) {
    let store = database.open();
    store.create(NewSession { name: "Ärger im Büro".into(), ..bare("s") }).await.unwrap().unwrap();
    // Case does not count for ASCII letters only: a database folds others as its locale says, or not at all.
    for (part, found) in [("Ärger", 1), ("ÄRGER IM", 1), ("BüRO", 1), ("ärger", 0), ("BÜRO", 0)] {
        let filter = SessionFilter { name_part: Some(part.into()), limit: 10, ..SessionFilter::default() };
        assert_eq!(store.sessions(filter).await.unwrap().1, found, "{part}");
    }
}
