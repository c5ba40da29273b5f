//! Appending and reading back.

use std::time::Duration;

use cadre_protocol::event::{EventContext, MAX_EVENT_BYTES, RunEvent};
use cadre_protocol::ids::{Epoch, RunId};
use cadre_protocol::journal::{Batch, Record};
use cadre_protocol::message::Role;
use cadre_protocol::run::RunStatus;
use cadre_protocol::tool::ToolExecution;
use cadre_store::Store;
use cadre_store::rows::{AppendOutcome, EventChunk, Lease};

use super::Database;
use super::fixtures::*;
use super::resumption::resumed;

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
    assert_eq!(store.events(&run_id, None, usize::MAX).await.unwrap(), Some(chunk));
    assert_eq!(store.run(&run_id).await.unwrap().unwrap().next_index, 3);
}

pub async fn events_that_are_not_kept_only_go_out(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let context = EventContext { skip: vec!["RunContent".into()], ..context(&run_id, "s") };
    let names = |frames: &str| -> Vec<String> {
        frames.lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect()
    };
    let begun = event(RunEvent::RunContinued {});
    let batch = |first_index, entries| Batch { run_id: run_id.clone(), epoch: lease.epoch, first_index, entries };
    let first = store.append(&context, &batch(0, vec![text("a"), begun, text("b")])).await.unwrap();
    let (next_index, chunk, _) = appended(first);
    assert_eq!(
        (next_index, names(&chunk.unwrap().frames)),
        (3, ["RunContent", "RunContinued", "RunContent"].map(String::from).to_vec())
    );
    appended(store.append(&context, &batch(3, vec![text("c")])).await.unwrap());
    assert_eq!(names(&frames(&*store, &run_id).await), ["RunContinued"]);
    complete(&*store, "s", &run_id, lease.epoch, 4).await;
    assert_eq!(names(&frames(&*store, &run_id).await), ["RunContinued", "RunCompleted"]);
    assert_eq!(store.run(&run_id).await.unwrap().unwrap().next_index, 7);
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
    let read = async |after, max_bytes| store.events(&run_id, after, max_bytes).await.unwrap();
    let span = |chunk: EventChunk| (chunk.first_index, chunk.next_index, ids(&chunk.frames));
    let whole = read(None, usize::MAX).await.map(span);
    assert_eq!(whole, Some((0, 300, (0..300).collect())));
    assert_eq!(read(Some(296), usize::MAX).await.map(span), Some((296, 300, vec![296, 297, 298, 299])), "297 is in it");
    assert_eq!(read(Some(297), usize::MAX).await.map(span), Some((298, 300, vec![298, 299])));
    assert_eq!(read(Some(299), usize::MAX).await, None);
    assert_eq!(read(None, 0).await.map(span), Some((0, 2, vec![0, 1])), "always one");
    let (mut next, mut pages) = (0, 0);
    while let Some(page) = read(u64::checked_sub(next, 1), 2_000).await {
        assert_eq!(page.first_index, next, "no gap, no duplicate");
        assert_eq!(ids(&page.frames), (next..page.next_index).collect::<Vec<_>>());
        assert!(page.frames.len() <= 4_000 && page.next_index > next, "{next}: {} bytes", page.frames.len());
        (next, pages) = (page.next_index, pages + 1);
    }
    assert_eq!(next, 300);
    assert!((10..150).contains(&pages), "{pages} pages");
}

pub async fn pages_end_although_a_journal_is_longer(database: &impl Database) {
    let store = database.open();
    let (run_id, lease) = running(&*store, "s").await;
    let batch = vec![text("a"); Batch::MAX_ENTRIES];
    let count = batch.len() as u64;
    let total = 10_000_u64.next_multiple_of(count);
    for first_index in (0..total).step_by(Batch::MAX_ENTRIES) {
        append(&*store, "s", &run_id, lease.epoch, first_index, batch.clone()).await;
    }
    let mut next = 0;
    while let Some(page) = store.events(&run_id, u64::checked_sub(next, 1), usize::MAX).await.unwrap() {
        assert_eq!((page.first_index, ids(&page.frames)), (next, (next..page.next_index).collect()));
        next = page.next_index;
    }
    assert_eq!(next, total);
}

/// A run of a hundred appends, two entries each; answers its frames.
async fn many_appends(store: &dyn Store) -> (RunId, Lease, String) {
    let (run_id, lease) = running(store, "s").await;
    let mut frames = String::new();
    for number in 0..100 {
        let entries = vec![text("a"), message(Role::User, "silent")];
        let (.., chunk, _) = appended(append(store, "s", &run_id, lease.epoch, number * 2, entries).await);
        frames.push_str(&chunk.unwrap().frames);
    }
    (run_id, lease, frames)
}

/// The same, ended; that is entry 200.
async fn many_appends_and_an_end(store: &dyn Store) -> (RunId, String) {
    let (run_id, lease, frames) = many_appends(store).await;
    let (.., chunk, _) = appended(append(store, "s", &run_id, lease.epoch, 200, vec![completed("a")]).await);
    (run_id, frames + &chunk.unwrap().frames)
}

/// Longest wait for what happens in the background.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the whole journal is one chunk.
async fn joined(store: &dyn Store, run_id: &RunId, next_index: u64) {
    let is_one = async || store.events(run_id, None, 0).await.unwrap().unwrap().next_index == next_index;
    let joined = async {
        while !is_one().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, joined).await.unwrap();
}

pub async fn small_chunks_become_few_and_nobody_can_tell(database: &impl Database) {
    let store = database.open();
    let (run_id, written) = many_appends_and_an_end(&*store).await;
    let before = store.run(&run_id).await.unwrap().unwrap();
    joined(&*store, &run_id, 201).await;
    assert_eq!(frames(&*store, &run_id).await, written);
    assert_eq!(store.run(&run_id).await.unwrap().unwrap(), before);
    let all = ids(&written);
    for after in 0..200 {
        let page = store.events(&run_id, Some(after), 0).await.unwrap().unwrap();
        let rest: Vec<u64> = ids(&page.frames).into_iter().filter(|id| *id > after).collect();
        assert_eq!(rest, all.iter().copied().filter(|id| *id > after).collect::<Vec<_>>());
    }
    assert_eq!(store.events(&run_id, Some(200), usize::MAX).await.unwrap(), None);
}

pub async fn chunks_left_small_by_a_crash_are_joined_when_they_are_read(database: &impl Database) {
    let store = database.open();
    let (run_id, written) = many_appends_and_an_end(&*store).await;
    // As if the process had been killed: whatever is joined by now stays so, the rest stays small.
    drop(store);
    let store = database.open();
    assert_eq!(frames(&*store, &run_id).await, written);
    joined(&*store, &run_id, 201).await;
    assert_eq!(frames(&*store, &run_id).await, written);
}

pub async fn a_run_goes_on_behind_joined_chunks(database: &impl Database) {
    let store = database.open();
    let (run_id, held, written) = many_appends(&*store).await;
    fail(&*store, "s", &run_id, held.epoch, 200).await;
    joined(&*store, &run_id, 201).await;
    resumed(&*store, &run_id, 100, None).await;
    let epoch = store.start(&run_id, &held, now()).await.unwrap().unwrap().epoch;
    let entries = vec![text("b"), completed("b")];
    let (next_index, chunk, _) = appended(append(&*store, "s", &run_id, epoch, 201, entries).await);
    assert_eq!(next_index, 203);
    let all = frames(&*store, &run_id).await;
    assert!(all.starts_with(&written) && all.ends_with(&*chunk.unwrap().frames));
    assert_eq!(ids(&all), (0..200).step_by(2).chain(200..203).collect::<Vec<_>>());
}

/// Numbers of frames.
fn ids(frames: &str) -> Vec<u64> {
    frames.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect()
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
    let detail = store.detail(&run_id, None).await.unwrap().unwrap();
    assert_eq!(detail.messages.iter().map(|message| message.role).collect::<Vec<_>>(), [Role::User, Role::Tool]);
    let tools: Vec<_> =
        detail.tools.iter().map(|state| (state.tool.tool_call_id.as_str(), state.finished, state.idempotent)).collect();
    assert_eq!(tools, [("b", true, true), ("a", false, false)]);
    assert_eq!(detail.tools[0].tool.result.as_deref(), Some("ok"));
}
