//! A batch made ready for the writer: events rendered, records serialized, limits of single entries checked.

use cadre_protocol::event::{EventContext, MAX_EVENT_BYTES, RunEvent};
use cadre_protocol::ids::{Epoch, RunId};
use cadre_protocol::journal::{Batch, Entry, Record};
use cadre_protocol::message::Role;
use cadre_protocol::run::RunEnd;
use serde_json::Value;

use crate::db::DbError;
use crate::ops::pause::Pause;

/// What an entry adds to the stream.
pub enum Frame {
    /// Nothing.
    None,
    /// A rendered event.
    Ready {
        /// Its text.
        text: String,
        /// Whether it is for those too who come later.
        kept: bool,
    },
    /// The end of a good run; rendered with its metrics once they are summed.
    Completed {
        /// The answer.
        content: Value,
        /// Its type.
        content_type: String,
    },
}

/// What an entry adds to the record.
pub enum Fact {
    /// Nothing.
    None,
    /// A message.
    Message {
        /// Who speaks, as in the database.
        role: &'static str,
        /// JSON.
        body: String,
    },
    /// A tool is about to run.
    ToolStarted {
        /// The call.
        call_id: String,
        /// The tool.
        tool_name: String,
        /// JSON.
        body: String,
        /// Whether running it twice does no harm.
        idempotent: bool,
    },
    /// A tool has a result.
    ToolFinished {
        /// The call.
        call_id: String,
        /// The tool.
        tool_name: String,
        /// JSON.
        body: String,
        /// JSON.
        effect: Option<String>,
        /// Whether the outcome is unknown.
        unknown_outcome: bool,
    },
    /// Another attempt follows.
    Retry,
    /// The end.
    Finished(RunEnd),
    /// The run waits for a person.
    Paused(Pause),
}

/// An entry.
pub struct Prepared {
    /// Its number.
    pub index: u64,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// For the stream.
    pub frame: Frame,
    /// For the record.
    pub fact: Fact,
}

impl Prepared {
    /// Bytes that it adds to the run's record, metrics aside.
    pub fn bytes(&self) -> usize {
        let frame = match &self.frame {
            Frame::None | Frame::Completed { .. } => 0,
            Frame::Ready { text, kept: _ } => text.len(),
        };
        let fact = match &self.fact {
            Fact::None | Fact::Retry | Fact::Finished(_) => 0,
            Fact::Paused(pause) => pause.bytes(),
            Fact::Message { body, .. } | Fact::ToolStarted { body, .. } => body.len(),
            Fact::ToolFinished { body, effect, .. } => body.len() + effect.as_ref().map_or(0, String::len),
        };
        frame + fact
    }
}

/// A batch.
pub struct PreparedBatch {
    /// The run.
    pub run_id: RunId,
    /// The writer's epoch.
    pub epoch: Epoch,
    /// Number of the first entry.
    pub first_index: u64,
    /// Entries.
    pub entries: Vec<Prepared>,
    /// Renders what could not be rendered yet.
    pub context: EventContext,
}

impl PreparedBatch {
    /// One past the last entry's number.
    pub fn next_index(&self) -> u64 {
        self.first_index + self.entries.len() as u64
    }
}

/// The limit that a batch breaks (security rule 19).
pub type Limit = &'static str;

/// Renders and serializes.
pub fn prepare(context: &EventContext, batch: &Batch) -> Result<Result<PreparedBatch, Limit>, DbError> {
    let Batch { run_id, epoch, first_index, entries } = batch;
    let first_index = *first_index;
    if entries.len() > Batch::MAX_ENTRIES {
        return Ok(Err("a batch has too many entries"));
    }
    let count = entries.len();
    let mut prepared = Vec::with_capacity(count);
    for (offset, entry) in entries.iter().enumerate() {
        if offset + 1 < count && matches!(entry.record, Some(Record::Finished(_) | Record::Paused { .. })) {
            return Ok(Err("entries follow the end of the run"));
        }
        let entry = prepare_entry(context, first_index.saturating_add(offset as u64), entry)?;
        if matches!(&entry.frame, Frame::Ready { text, .. } if text.len() > MAX_EVENT_BYTES) {
            return Ok(Err(EVENT_TOO_LARGE));
        }
        prepared.push(entry);
    }
    let (run_id, epoch) = (run_id.clone(), *epoch);
    Ok(Ok(PreparedBatch { run_id, epoch, first_index, entries: prepared, context: context.clone() }))
}

/// An event is larger than [`MAX_EVENT_BYTES`].
pub const EVENT_TOO_LARGE: Limit = "an event is too large";

fn prepare_entry(context: &EventContext, index: u64, entry: &Entry) -> Result<Prepared, DbError> {
    let Entry { at_ms, event, record } = entry;
    let at_ms = *at_ms;
    let frame = match event {
        None => Frame::None,
        Some(RunEvent::RunCompleted { content, content_type, metrics: _ }) => {
            Frame::Completed { content: content.clone(), content_type: content_type.clone() }
        }
        Some(event) => Frame::Ready {
            text: context.to_sse(event, index, at_ms)?,
            kept: !context.skip.iter().any(|skipped| skipped == event.name()),
        },
    };
    let fact = match record {
        None => Fact::None,
        Some(record) => fact(record)?,
    };
    Ok(Prepared { index, at_ms, frame, fact })
}

fn fact(record: &Record) -> Result<Fact, DbError> {
    Ok(match record {
        Record::Message(message) => Fact::Message { role: role(message.role), body: serde_json::to_string(message)? },
        Record::ToolStarted { tool, idempotent } => Fact::ToolStarted {
            body: serde_json::to_string(tool)?,
            call_id: tool.tool_call_id.clone(),
            tool_name: tool.tool_name.clone(),
            idempotent: *idempotent,
        },
        Record::ToolFinished { tool, effect, unknown_outcome } => Fact::ToolFinished {
            body: serde_json::to_string(tool)?,
            call_id: tool.tool_call_id.clone(),
            tool_name: tool.tool_name.clone(),
            effect: effect.as_ref().map(serde_json::to_string).transpose()?,
            unknown_outcome: *unknown_outcome,
        },
        Record::Retry {} => Fact::Retry,
        Record::Finished(end) => Fact::Finished(end.clone()),
        Record::Paused { content, requirements } => Fact::Paused(Pause::new(content, requirements)?),
    })
}

fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}
