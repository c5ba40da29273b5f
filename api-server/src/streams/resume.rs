//! What a client that comes back is told before, between and instead of events. Pure.

use cadre_protocol::run::RunStatus;
use cadre_store::rows::RunRow;
use serde_json::{Value, json};

/// How a stream begins, and when it has caught up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// A control frame before anything else.
    pub first: Option<String>,
    /// Number of the last event that the client has.
    pub after: Option<u64>,
    /// Once all entries below this number have gone out, this control frame follows.
    pub caught_up: Option<(u64, String)>,
    /// Whether only pieces of the answer go out.
    pub content_only: bool,
}

/// The plan of a client that has the events up to `after` of a run that stands as `run` says.
///
/// Counts are journal entries: a few of them have no event, so they are upper bounds, as event numbers are not gapless.
#[must_use]
pub fn plan(run: &RunRow, after: Option<u64>) -> Plan {
    let have = after.map_or(0, |last| last.saturating_add(1)).min(run.next_index);
    let missed = run.next_index - have;
    if run.status.is_at_rest() {
        return Plan { first: Some(replay(run, missed, after)), after, ..Plan::default() };
    }
    let first = (missed > 0).then(|| catch_up(run, missed));
    Plan { first, after, caught_up: Some((run.next_index, subscribed(run))), ..Plan::default() }
}

fn replay(run: &RunRow, missed: u64, after: Option<u64>) -> String {
    let message = match run.status {
        RunStatus::Paused => "Run waits for a person; its events follow.".to_owned(),
        ended => format!("Run has ended with status {}; its events follow.", ended.as_str()),
    };
    control(
        "replay",
        json!({
            "run_id": run.run_id.as_str(),
            "status": run.status.as_str(),
            "total_events": missed,
            "total_buffered": run.next_index,
            "last_event_index_requested": after,
            "message": message,
        }),
    )
}

fn catch_up(run: &RunRow, missed: u64) -> String {
    control(
        "catch_up",
        json!({
            "run_id": run.run_id.as_str(),
            "status": run.status.as_str(),
            "missed_events": missed,
            "current_event_count": run.next_index,
            "message": format!("Up to {missed} events follow that were missed."),
        }),
    )
}

fn subscribed(run: &RunRow) -> String {
    let message = match run.status {
        RunStatus::Pending => "The run waits for its turn; events follow as they happen.",
        _ => "All earlier events have been sent; events follow as they happen.",
    };
    control(
        "subscribed",
        json!({
            "run_id": run.run_id.as_str(),
            "status": run.status.as_str(),
            "current_event_count": run.next_index,
            "message": message,
        }),
    )
}

/// The only frame of a stream that can't be had.
#[must_use]
pub fn error(message: &str) -> String {
    control("error", json!({ "error": message }))
}

/// A control frame: without an id, so that a client's last event id stays what it was.
fn control(event: &str, mut data: Value) -> String {
    if let Value::Object(fields) = &mut data {
        fields.insert("event".to_owned(), Value::from(event));
    }
    format!("event: {event}\ndata: {data}\n\n")
}
