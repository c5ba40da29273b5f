//! Checkpoints: places of a run's conversation from which it can be continued.

use cadre_protocol::message::Message;
use cadre_protocol::run::RunStatus;
use cadre_store::rows::{RunDetail, RunRow};
use serde::Serialize;
use utoipa::ToSchema;

use super::message::role_name;
use super::output::{self, RunOutput};
use super::time::seconds;
use crate::domain::boundary;

/// Longest preview of a message, in characters.
const PREVIEW_CHARS: usize = 120;

/// The checkpoints of a run.
#[derive(Debug, Serialize, ToSchema)]
pub struct Checkpoints {
    /// Run.
    pub run_id: String,
    /// Session.
    pub session_id: String,
    /// In order; the last one is the end of the conversation so far.
    pub checkpoints: Vec<Checkpoint>,
}

/// A place of a run's conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct Checkpoint {
    /// Its number in the list, from 1; absent where it is not in the list.
    #[schema(required = true)]
    pub checkpoint_id: Option<String>,
    /// Run.
    pub run_id: String,
    /// Session.
    pub session_id: String,
    /// How many messages come before it.
    pub message_index: u64,
    /// The same, as `continue_from` takes it.
    pub continue_from: u64,
    /// `RUNNING` where the run went on from here; at the end the run's status.
    pub status: String,
    /// `checkpoint`, `end`, or `snapshot` with a snapshot.
    pub reason: String,
    /// Unix seconds.
    pub created_at: u64,
    /// The message before it.
    #[schema(required = true)]
    pub message_id: Option<String>,
    /// Who speaks there.
    #[schema(required = true)]
    pub message_role: Option<String>,
    /// Its beginning.
    #[schema(required = true)]
    pub message_preview: Option<String>,
    /// Whether it is the end of the conversation so far.
    pub is_latest: bool,
}

/// A run as it was at a place of its conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct Snapshot {
    /// The place that was asked for.
    pub checkpoint: Checkpoint,
    /// The run up to the last place at or before it that parts no call from its result.
    pub snapshot: RunOutput,
}

/// All checkpoints of a run: after each message, and after each batch of tool calls once it is complete.
#[must_use]
pub fn list(run: &RunRow, messages: &[Message]) -> Checkpoints {
    let end = messages.len();
    let entry = |(number, at): (usize, usize)| {
        let reason = if at == end { "end" } else { "checkpoint" };
        Checkpoint { checkpoint_id: Some((number + 1).to_string()), ..checkpoint(run, messages, at, reason) }
    };
    Checkpoints {
        run_id: run.run_id.to_string(),
        session_id: run.session_id.to_string(),
        checkpoints: boundary::all(messages).into_iter().enumerate().map(entry).collect(),
    }
}

/// The run at a place; there must be so many messages.
#[must_use]
pub fn snapshot(mut detail: RunDetail, at: usize) -> Snapshot {
    let number = boundary::all(&detail.messages).iter().position(|known| *known == at);
    let checkpoint = Checkpoint {
        checkpoint_id: number.map(|number| (number + 1).to_string()),
        ..checkpoint(&detail.run, &detail.messages, at, "snapshot")
    };
    let kept = boundary::snap(&detail.messages, at);
    detail.messages.truncate(kept);
    let is_known = |id: &str| detail.messages.iter().any(|message| message.tool_calls.iter().any(|call| call.id == id));
    detail.tools.retain(|state| is_known(&state.tool.tool_call_id));
    let mut snapshot = output::output(detail);
    snapshot.last_checkpoint_at_message_index = Some(kept as u64);
    Snapshot { checkpoint, snapshot }
}

fn checkpoint(run: &RunRow, messages: &[Message], at: usize, reason: &str) -> Checkpoint {
    let message = at.checked_sub(1).and_then(|before| messages.get(before));
    let is_latest = at == messages.len();
    let status = if is_latest { run.status } else { RunStatus::Running };
    Checkpoint {
        checkpoint_id: None,
        run_id: run.run_id.to_string(),
        session_id: run.session_id.to_string(),
        message_index: at as u64,
        continue_from: at as u64,
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        created_at: seconds(message.map_or(run.created_at_ms, |message| message.created_at_ms)),
        message_id: message.map(|message| message.id.clone()),
        message_role: message.map(|message| role_name(message.role).to_owned()),
        message_preview: message.map(preview),
        is_latest,
    }
}

fn preview(message: &Message) -> String {
    let line = message.content.replace('\n', " ");
    let line = line.trim();
    if line.chars().count() <= PREVIEW_CHARS {
        return line.to_owned();
    }
    let beginning: String = line.chars().take(PREVIEW_CHARS - 3).collect();
    format!("{beginning}...")
}

#[cfg(test)]
mod tests {
    use cadre_protocol::message::Role;

    use super::*;

    #[test]
    fn previews_are_one_short_line() {
        let of = |text: &str| preview(&Message::text(Role::User, text, 0));
        assert_eq!(of(" a\nb "), "a b");
        assert_eq!(of(&"ä".repeat(120)).chars().count(), 120);
        let long = of(&"ä".repeat(121));
        assert!(long.ends_with("ä...") && long.chars().count() == 120, "{long}");
    }
}
