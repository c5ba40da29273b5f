//! What is right after a round: every run has ended well, every effect is there once or reported as unknown, and clients saw
//! what the record says. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use super::work::{CALLS, is_call, line};
use crate::story::follow::Frame;

/// How often each line is in the ledgers.
pub type Lines = BTreeMap<String, usize>;

/// What came of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Its lines in the ledgers.
    pub effects: usize,
    /// Calls that were reported as unknown.
    pub unknown: usize,
    /// Whether another worker went on with it.
    pub resumed: bool,
    /// What is wrong.
    pub faults: Vec<String>,
}

/// Judges a run by its status, its events and the ledgers.
#[must_use]
pub fn run(round: usize, run: usize, status: &str, frames: &[Frame], lines: &Lines) -> Outcome {
    let mut outcome = Outcome::default();
    let mut fault = |text: String| outcome.faults.push(text);
    if status != "COMPLETED" {
        let why = frames.iter().find(|frame| frame.event == "RunError").map(|frame| frame.data["content"].to_string());
        fault(why.map_or_else(|| format!("is {status}"), |why| format!("is {status}: {why}")));
    }
    let ends = frames.iter().filter(|frame| frame.event == "RunCompleted").count();
    if ends != 1 || frames.last().is_none_or(|frame| frame.event != "RunCompleted") {
        fault(format!("its events have {ends} ends"));
    }
    if !is_rising(frames) {
        fault("its events' numbers don't go up".into());
    }
    let unknown: Vec<_> = frames.iter().filter(|frame| frame.is_custom("tool_outcome_unknown")).collect();
    let unknown: Vec<_> = unknown.iter().map(|frame| &frame.data["tool_call_id"]).collect();
    for call in 1..=CALLS {
        let ended = frames.iter().filter(|frame| frame.event == "ToolCallCompleted");
        let ended: Vec<_> = ended.filter(|frame| is_call(tool(frame, "tool_args"), round, run, call)).collect();
        if ended.len() != 1 {
            fault(format!("call {call} has {} results", ended.len()));
        }
        let is_unknown = ended.iter().any(|frame| unknown.contains(&tool(frame, "tool_call_id")));
        let count = lines.get(&line(round, run, call)).copied().unwrap_or_default();
        let right = if is_unknown { count <= 1 } else { count == 1 };
        if !right {
            fault(format!("call {call} had its effect {count} times, reported as unknown: {is_unknown}"));
        }
        outcome.effects += count;
        outcome.unknown += usize::from(is_unknown);
    }
    outcome.resumed = frames.iter().any(|frame| frame.event == "RunContinued");
    outcome
}

fn tool<'a>(frame: &'a Frame, field: &str) -> &'a Value {
    &frame.data["tool"][field]
}

fn is_rising(frames: &[Frame]) -> bool {
    frames.windows(2).all(|pair| matches!(pair, [first, second] if first.id < second.id))
}

/// What is wrong with what a client saw, compared to what the record tells afterwards. Empty: nothing.
#[must_use]
pub fn stream(seen: &[Frame], record: &[Frame]) -> Option<String> {
    if seen == record {
        return None;
    }
    let ids = |frames: &[Frame]| frames.iter().map(|frame| frame.id).collect::<Vec<_>>();
    let (seen_ids, record_ids) = (ids(seen), ids(record));
    let without =
        |ids: &[u64], others: &[u64]| -> Vec<u64> { ids.iter().filter(|id| !others.contains(id)).copied().collect() };
    let repeated = seen_ids.windows(2).filter(|pair| matches!(pair, [first, second] if first >= second)).count();
    let differing = seen.iter().find(|frame| record.iter().any(|other| other.id == frame.id && other != *frame));
    Some(format!(
        "missed {:?}, saw {:?} that the record lacks, {repeated} out of order, differing: {differing:?}",
        without(&record_ids, &seen_ids),
        without(&seen_ids, &record_ids),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn frame(id: u64, event: &str, data: Value) -> Frame {
        Frame { id, event: event.into(), data }
    }

    /// The events of run 4 of round 1; `unknown` names calls whose outcome is not known.
    fn frames(unknown: &[usize]) -> Vec<Frame> {
        let mut frames = vec![frame(1, "RunStarted", json!({}))];
        for call in 1..=CALLS {
            let id = 10 * call as u64;
            if unknown.contains(&call) {
                let data = json!({"type": "tool_outcome_unknown", "tool_call_id": format!("c{call}")});
                frames.push(frame(id, "CustomEvent", data));
            }
            let command = format!("sleep 1.5; echo {} >> ledger-1", line(1, 4, call));
            let tool = json!({"tool_call_id": format!("c{call}"), "tool_args": {"command": command}});
            frames.push(frame(id + 1, "ToolCallCompleted", json!({"tool": tool})));
        }
        frames.push(frame(99, "RunCompleted", json!({})));
        frames
    }

    fn lines(counts: [usize; CALLS]) -> Lines {
        (1..).zip(counts).map(|(call, count)| (line(1, 4, call), count)).collect()
    }

    #[test]
    fn a_run_without_a_crash_is_right() {
        let outcome = run(1, 4, "COMPLETED", &frames(&[]), &lines([1; CALLS]));
        assert_eq!(outcome, Outcome { effects: 5, ..Outcome::default() });
    }

    #[test]
    fn an_unknown_call_may_be_there_or_not_but_never_twice() {
        for (counts, effects, faults) in [([1, 1, 0, 1, 1], 4, 0), ([1; CALLS], 5, 0), ([1, 1, 2, 1, 1], 6, 1)] {
            let outcome = run(1, 4, "COMPLETED", &frames(&[3]), &lines(counts));
            assert_eq!((outcome.effects, outcome.unknown, outcome.faults.len()), (effects, 1, faults), "{outcome:?}");
        }
    }

    #[test]
    fn lost_and_doubled_effects_and_other_ends_are_faults() {
        let faults = |status: &str, frames: &[Frame], lines: &Lines| run(1, 4, status, frames, lines).faults;
        let good = (frames(&[]), lines([1; CALLS]));
        assert_eq!(faults("COMPLETED", &good.0, &lines([1, 2, 1, 0, 1])).len(), 2);
        assert_eq!(faults("ERROR", &good.0, &good.1), ["is ERROR"]);
        let mut twice = good.0.clone();
        twice.insert(3, twice[2].clone());
        let found = faults("COMPLETED", &twice, &good.1);
        assert_eq!(found, ["its events' numbers don't go up", "call 2 has 2 results"]);
        assert_eq!(faults("COMPLETED", &good.0[..6], &good.1).len(), 1);
    }

    #[test]
    fn another_worker_is_seen() {
        let mut frames = frames(&[]);
        frames.insert(2, frame(12, "RunContinued", json!({})));
        assert!(run(1, 4, "COMPLETED", &frames, &lines([1; CALLS])).resumed);
    }

    #[test]
    fn a_client_that_missed_or_repeated_is_told_so() {
        let record = frames(&[]);
        assert_eq!(stream(&record, &record), None);
        let mut missed = record.clone();
        missed.remove(2);
        assert!(stream(&missed, &record).unwrap().starts_with("missed [21], saw []"));
        let mut repeated = record.clone();
        repeated.insert(2, record[1].clone());
        assert!(stream(&repeated, &record).unwrap().contains("1 out of order"));
        let mut other = record.clone();
        other[2].data = json!({});
        assert!(stream(&other, &record).unwrap().contains("differing: Some"));
    }
}
