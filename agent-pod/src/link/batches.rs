//! Batches of entries: how long they are, where they are parted, and what is sent where one fits no frame. Pure.

use cadre_protocol::event::RunEvent;
use cadre_protocol::journal::{Batch, Entry, Record};
use cadre_protocol::requirement::RunRequirement;
use cadre_protocol::run::RunEnd;

use crate::engine::{bounds, ends};

/// Bytes of a batch above which a new one is begun.
const BATCH_BYTES: usize = 1 << 20;

/// A batch that has no acknowledgement yet.
pub(super) struct Queued {
    pub(super) batch: Batch,
    pub(super) bytes: usize,
    /// Sent on this connection.
    pub(super) sent: bool,
    /// Sent on any connection: its bounds are fixed.
    pub(super) fixed: bool,
}

impl Queued {
    pub(super) fn new(batch: Batch) -> Self {
        let bytes = batch.entries.iter().map(entry_bytes).sum();
        Self { batch, bytes, sent: false, fixed: false }
    }

    /// Whether entries can still be added.
    pub(super) fn takes(&self, first_index: u64, entries: usize, bytes: usize) -> bool {
        let len = self.batch.entries.len();
        !self.fixed
            && self.batch.first_index + len as u64 == first_index
            && len + entries <= Batch::MAX_ENTRIES
            && self.bytes + bytes <= BATCH_BYTES
    }
}

/// The end of a run whose entries no server takes.
pub(super) fn in_place_of(batch: Batch) -> Batch {
    let failure = ends::failure("limit_exceeded", "what the run wrote is larger than the API server takes", false);
    let at_ms = batch.entries.first().map_or(0, |entry| entry.at_ms);
    let record = Some(Record::Finished(RunEnd::Error(failure.clone())));
    let entry = Entry { at_ms, event: Some(ends::error_event(&failure)), record };
    Batch { entries: vec![entry], ..batch }
}

/// A batch in parts that keep the limits.
pub(super) fn split(batch: Batch) -> Vec<Batch> {
    let mut parts: Vec<(Batch, usize)> = Vec::new();
    let Batch { run_id, epoch, first_index, entries } = batch;
    for (index, entry) in (first_index..).zip(entries) {
        let bytes = entry_bytes(&entry);
        match parts.last_mut() {
            Some((part, size)) if part.entries.len() < Batch::MAX_ENTRIES && *size + bytes <= BATCH_BYTES => {
                part.entries.push(entry);
                *size += bytes;
            }
            _ => {
                let entries = vec![entry];
                parts.push((Batch { run_id: run_id.clone(), epoch, first_index: index, entries }, bytes));
            }
        }
    }
    parts.into_iter().map(|(part, _)| part).collect()
}

/// About how many bytes an entry takes; only its long texts count.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
    let event = match &entry.event {
        Some(RunEvent::RunContent { content, reasoning_content, .. }) => {
            bounds::size(content) + reasoning_content.as_ref().map_or(0, String::len)
        }
        Some(RunEvent::ToolCallStarted { tool } | RunEvent::ToolCallCompleted { tool, .. }) => tool_bytes(tool),
        Some(RunEvent::ToolCallError { tool, error }) => tool_bytes(tool) + error.len(),
        Some(RunEvent::RunCompleted { content, .. }) => bounds::size(content),
        Some(RunEvent::RunPaused { requirements, .. }) => 2 * requirement_bytes(requirements),
        _ => 0,
    };
    let record = match &entry.record {
        Some(Record::Message(message)) => {
            let calls: usize = message.tool_calls.iter().map(|call| call.arguments.len() + 64).sum();
            let data = message.provider_data.as_ref().map_or(0, bounds::size);
            message.content.len() + message.reasoning.as_ref().map_or(0, String::len) + calls + data
        }
        Some(Record::ToolStarted { tool, .. } | Record::ToolFinished { tool, .. }) => tool_bytes(tool),
        Some(Record::Paused { content, requirements }) => content.len() + requirement_bytes(requirements),
        Some(Record::Retry {} | Record::Finished(_)) | None => 0,
    };
    256 + event + record
}

fn requirement_bytes(requirements: &[RunRequirement]) -> usize {
    requirements.iter().map(|requirement| tool_bytes(&requirement.tool_execution)).sum()
}

fn tool_bytes(tool: &cadre_protocol::tool::ToolExecution) -> usize {
    let arguments: usize = tool.tool_args.values().map(bounds::size).sum();
    512 + arguments + tool.result.as_ref().map_or(0, String::len)
}
