//! Limits on what goes into events and to the model.

use cadre_protocol::event::RunEvent;
use cadre_protocol::tool::{ToolExecution, WorkspaceEffect};
use serde_json::{Map, Value};

/// Characters of a tool result that the model sees.
pub const RESULT_CHARS: usize = 16_000;
/// Longest text inside an event, in bytes: two of them stay below the largest event.
pub const EVENT_TEXT_BYTES: usize = 64 << 10;
/// Longest workspace identity and longest file name that are believed, in bytes.
const NAME_BYTES: usize = 1024;

/// Keeps the beginning and the end of a text that has more than `max` characters.
#[must_use]
pub fn head_and_tail(text: &str, max: usize) -> String {
    let total = text.chars().count();
    if total <= max {
        return text.to_owned();
    }
    let head = max * 2 / 3;
    let tail = max - head;
    let head_end = byte_of_char(text, head);
    let tail_start = byte_of_char(text, total - tail);
    let (left, right) = (text.get(..head_end).unwrap_or_default(), text.get(tail_start..).unwrap_or_default());
    format!("{left}\n[… {} characters left out …]\n{right}", total - max)
}

fn byte_of_char(text: &str, n: usize) -> usize {
    text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
}

/// The longest prefix of at most `max` bytes that ends between characters.
#[must_use]
pub fn prefix(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or_default()
}

/// Shortens an event that would break the limit; records keep the whole value.
#[must_use]
pub fn fit_event(event: RunEvent) -> RunEvent {
    match event {
        RunEvent::ToolCallStarted { tool } => RunEvent::ToolCallStarted { tool: fit_tool(tool) },
        RunEvent::ToolCallCompleted { tool, content } => RunEvent::ToolCallCompleted { tool: fit_tool(tool), content },
        RunEvent::ToolCallError { tool, error } => {
            RunEvent::ToolCallError { tool: fit_tool(tool), error: prefix(&error, EVENT_TEXT_BYTES).to_owned() }
        }
        RunEvent::RunCompleted { content, content_type, metrics } => {
            RunEvent::RunCompleted { content: fit_value(content), content_type, metrics }
        }
        RunEvent::RunContent { content, content_type, reasoning_content } => {
            RunEvent::RunContent { content: fit_value(content), content_type, reasoning_content }
        }
        RunEvent::RunCancelled { content, reason } => {
            RunEvent::RunCancelled { content: prefix(&content, EVENT_TEXT_BYTES).to_owned(), reason }
        }
        other => other,
    }
}

fn fit_value(value: Value) -> Value {
    match value {
        Value::String(text) if text.len() > EVENT_TEXT_BYTES => {
            Value::String(format!("{}…", prefix(&text, EVENT_TEXT_BYTES)))
        }
        other if size(&other) > 2 * EVENT_TEXT_BYTES => Value::String("[too large for an event]".into()),
        other => other,
    }
}

fn fit_tool(mut tool: ToolExecution) -> ToolExecution {
    if tool.tool_args.values().map(size).sum::<usize>() > EVENT_TEXT_BYTES {
        tool.tool_args = shorten(tool.tool_args);
    }
    tool
}

fn shorten(arguments: Map<String, Value>) -> Map<String, Value> {
    arguments
        .into_iter()
        .take(32)
        .map(|(name, value)| match value {
            Value::String(text) => (name, Value::String(format!("{}…", prefix(&text, 1000)))),
            other if size(&other) > 1000 => (name, Value::String("…".into())),
            other => (name, other),
        })
        .collect()
}

/// About how many bytes a value takes as JSON.
#[must_use]
pub fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 16,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + size(value) + 4).sum::<usize>() + 2,
    }
}

/// Bounds what exec-server says of a workspace.
#[must_use]
pub fn fit_effect(effect: WorkspaceEffect) -> WorkspaceEffect {
    let WorkspaceEffect { workspace_id, files, truncated } = effect;
    let too_many = files.len() > WorkspaceEffect::MAX_FILES;
    let files: Vec<String> =
        files.into_iter().take(WorkspaceEffect::MAX_FILES).filter(|file| file.len() <= NAME_BYTES).collect();
    WorkspaceEffect { workspace_id: prefix(&workspace_id, 128).to_owned(), files, truncated: truncated || too_many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_both_ends() {
        let text: String = ('a'..='z').cycle().take(100).collect();
        let cut = head_and_tail(&text, 30);
        assert!(cut.starts_with(&text[..20]) && cut.ends_with(&text[90..]), "{cut}");
        assert!(cut.contains("70 characters"));
        assert_eq!(head_and_tail("äöü", 3), "äöü");
    }

    #[test]
    fn a_huge_argument_does_not_make_a_huge_event() {
        let tool = ToolExecution {
            tool_args: Map::from_iter([("content".into(), Value::String("ß".repeat(300 << 10)))]),
            ..ToolExecution::default()
        };
        let event = serde_json::to_string(&fit_event(RunEvent::ToolCallStarted { tool })).unwrap();
        assert!(event.len() < 4000);
    }
}
