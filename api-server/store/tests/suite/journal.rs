//! Appending and reading back.

use cadre_protocol::event::{MAX_EVENT_BYTES, RunEvent};
use cadre_protocol::ids::Epoch;
use cadre_protocol::journal::{Batch, Record};
use cadre_protocol::message::Role;
use cadre_protocol::run::RunStatus;
use cadre_protocol::tool::ToolExecution;
use cadre_store::rows::AppendOutcome;

use super::Database;
use super::fixtures::*;

pub async fn events_are_stored_as_they_go_out(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let entries = vec![text("a"), message(Role::Assistant, "silent"), text("b")];
    let expected: String = [(0, &entries[0]), (2, &entries[2])]
        .into_iter()
        .map(|(index, entry)| {
            let event = entry.event.as_ref().unwrap();
            context(&run_id, "s").to_sse(event, index, entry.at_ms).unwrap()
        })
        .collect();
    let (next_index, chunk, ended) = appended(append(&*store, "s", &run_id, lease.epoch, 0, entries).await);
    let chunk = chunk.unwrap();
    assert_eq!((next_index, chunk.first_index, chunk.next_index, ended), (3, 0, 3, None));
    assert_eq!(&*chunk.frames, expected);
    assert_eq!(store.events(&run_id, None, usize::MAX).await.unwrap(), [chunk]);
    assert_eq!(store.run(&run_id).await.unwrap().unwrap().next_index, 3);
}

pub async fn a_batch_sent_again_is_acknowledged_once(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let entries = vec![text("a"), text("b"), text("c")];
    append(&*store, "s", &run_id, lease.epoch, 0, entries.clone()).await;
    let again = append(&*store, "s", &run_id, lease.epoch, 0, entries.clone()).await;
    assert_eq!(again, AppendOutcome::Appended { next_index: 3, chunk: None, ended: None });
    let longer = [entries, vec![text("d")]].concat();
    let (next_index, chunk, _) = appended(append(&*store, "s", &run_id, lease.epoch, 0, longer).await);
    let chunk = chunk.unwrap();
    assert_eq!((next_index, chunk.first_index, chunk.next_index), (4, 3, 4));
    let all = frames(&*store, &run_id).await;
    let ids: Vec<&str> = all.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids, ["0", "1", "2", "3"]);
}

pub async fn a_gap_is_told(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    append(&*store, "s", &run_id, lease.epoch, 0, vec![text("a")]).await;
    let outcome = append(&*store, "s", &run_id, lease.epoch, 2, vec![text("c")]).await;
    assert_eq!(outcome, AppendOutcome::Gap { next_index: 1 });
}

pub async fn an_old_epoch_is_fenced(database: &impl Database) {
    let store = database.open();
    let (run_id, old) = running(&*store, "s").await;
    append(&*store, "s", &run_id, old.epoch, 0, vec![text("a")]).await;
    let new = lease(&*store, "s", "b").await;
    assert_eq!(append(&*store, "s", &run_id, old.epoch, 1, vec![text("z")]).await, AppendOutcome::Fenced);
    assert_eq!(
        append(&*store, "s", &run_id, new.epoch, 1, vec![text("z")]).await,
        AppendOutcome::Fenced,
        "not started"
    );
    store.start(&run_id, &new, now()).await.unwrap().unwrap();
    assert_eq!(append(&*store, "s", &run_id, old.epoch, 0, vec![text("a")]).await, AppendOutcome::Fenced);
    appended(append(&*store, "s", &run_id, new.epoch, 1, vec![text("b")]).await);
}

pub async fn a_run_that_has_not_started_is_fenced(database: &impl Database) {
    let store = database.open();
    let run_id = accept(&*store, "s").await;
    let lease = lease(&*store, "s", "w").await;
    assert_eq!(append(&*store, "s", &run_id, lease.epoch, 0, vec![text("a")]).await, AppendOutcome::Fenced);
    assert_eq!(append(&*store, "s", &run_id, Epoch(0), 0, vec![text("a")]).await, AppendOutcome::Fenced);
    let unknown = cadre_protocol::ids::RunId::generate();
    assert_eq!(append(&*store, "s", &unknown, lease.epoch, 0, vec![text("a")]).await, AppendOutcome::Fenced);
}

pub async fn a_final_batch_sent_again_is_acknowledged(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let entries = vec![text("a"), completed("a")];
    let (_, chunk, ended) = appended(append(&*store, "s", &run_id, lease.epoch, 0, entries.clone()).await);
    assert_eq!((chunk.unwrap().next_index, ended.unwrap().status), (2, RunStatus::Completed));
    let again = append(&*store, "s", &run_id, lease.epoch, 0, entries).await;
    assert_eq!(again, AppendOutcome::Appended { next_index: 2, chunk: None, ended: None });
    assert_eq!(append(&*store, "s", &run_id, lease.epoch, 2, vec![text("late")]).await, AppendOutcome::Fenced);
}

pub async fn limits_are_kept(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let many = vec![text("x"); Batch::MAX_ENTRIES + 1];
    let large = vec![text("ok"), text(&"x".repeat(MAX_EVENT_BYTES))];
    let large_end = vec![completed(&"x".repeat(MAX_EVENT_BYTES))];
    let after_end = vec![completed("a"), text("late")];
    for entries in [many, large, large_end, after_end] {
        let outcome = append(&*store, "s", &run_id, lease.epoch, 0, entries).await;
        assert!(matches!(outcome, AppendOutcome::LimitExceeded(_)), "{outcome:?}");
    }
    let row = store.run(&run_id).await.unwrap().unwrap();
    assert_eq!((row.next_index, row.status), (0, RunStatus::Running), "nothing was written");
}

pub async fn a_run_can_not_grow_beyond_its_limit(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let batch = vec![text(&"x".repeat(250 << 10)); 32];
    let mut outcomes = Vec::new();
    for number in 0..10 {
        outcomes.push(append(&*store, "s", &run_id, lease.epoch, number * 32, batch.clone()).await);
        if matches!(outcomes.last(), Some(AppendOutcome::LimitExceeded(_))) {
            break;
        }
    }
    assert_eq!(outcomes.len(), 9, "eight batches of 8 MB fit into 64 MiB");
    let other = running(&*store, "t").await;
    appended(append(&*store, "t", &other.0, other.1.epoch, 0, vec![text("fine")]).await);
}

pub async fn events_are_paged_by_bytes(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    for number in 0..150_u64 {
        append(&*store, "s", &run_id, lease.epoch, number * 2, vec![text("a"), text("b")]).await;
    }
    let all = store.events(&run_id, None, usize::MAX).await.unwrap();
    assert_eq!(all.len(), 150);
    let tail = store.events(&run_id, Some(296), usize::MAX).await.unwrap();
    assert_eq!(tail.iter().map(|chunk| chunk.first_index).collect::<Vec<_>>(), [296, 298], "297 is in the first");
    assert_eq!(store.events(&run_id, Some(297), usize::MAX).await.unwrap().len(), 1);
    assert!(store.events(&run_id, Some(299), usize::MAX).await.unwrap().is_empty());
    assert_eq!(store.events(&run_id, None, 0).await.unwrap().len(), 1, "always one");
    let (mut after, mut seen) = (None, 0);
    loop {
        let page = store.events(&run_id, after, 2_000).await.unwrap();
        let Some(last) = page.last() else { break };
        assert_eq!(page[0].first_index, after.map_or(0, |index| index + 1));
        after = Some(last.next_index - 1);
        seen += page.len();
    }
    assert_eq!(seen, 150);
}

pub async fn records_become_messages_and_tools(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let call = |id: &str, result: Option<&str>| ToolExecution {
        tool_call_id: id.into(),
        tool_name: "shell".into(),
        result: result.map(Into::into),
        ..ToolExecution::default()
    };
    let first = vec![
        message(Role::User, "q"),
        record(Record::ToolStarted { tool: call("b", None), idempotent: true }),
        record(Record::ToolStarted { tool: call("a", None), idempotent: false }),
    ];
    append(&*store, "s", &run_id, lease.epoch, 0, first).await;
    let finished = Record::ToolFinished { tool: call("b", Some("ok")), effect: None, unknown_outcome: false };
    let second = vec![record(finished), message(Role::Tool, "ok"), event(RunEvent::RunContentCompleted {})];
    append(&*store, "s", &run_id, lease.epoch, 3, second).await;
    let detail = store.detail(&run_id).await.unwrap().unwrap();
    assert_eq!(detail.messages.iter().map(|message| message.role).collect::<Vec<_>>(), [Role::User, Role::Tool]);
    let tools: Vec<_> =
        detail.tools.iter().map(|state| (state.tool.tool_call_id.as_str(), state.finished, state.idempotent)).collect();
    assert_eq!(tools, [("b", true, true), ("a", false, false)]);
    assert_eq!(detail.tools[0].tool.result.as_deref(), Some("ok"));
}
