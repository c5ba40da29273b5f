//! Limits on what goes into events and to the model.

use cadre_protocol::event::RunEvent;
use cadre_protocol::tool::{ToolExecution, WorkspaceEffect};
use serde_json::{Map, Value};

/// Characters of a tool result that the model sees.
pub const RESULT_CHARS: usize = 16_000;
/// Longest piece of an answer in one event, in bytes: even if each byte takes six as JSON it fits.
pub const PIECE_BYTES: usize = 32 << 10;
/// Longest text inside an event, in bytes of JSON.
const EVENT_TEXT_BYTES: usize = 200 << 10;
/// Longest arguments inside an event, in bytes of JSON: a result and its error fit beside them.
const EVENT_ARGUMENT_BYTES: usize = 48 << 10;
/// Longest error inside an event, in bytes.
const EVENT_ERROR_BYTES: usize = 8 << 10;
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
            RunEvent::ToolCallError { tool: fit_tool(tool), error: prefix(&error, EVENT_ERROR_BYTES).to_owned() }
        }
        RunEvent::RunCompleted { content, content_type, metrics } => {
            RunEvent::RunCompleted { content: fit_value(content), content_type, metrics }
        }
        RunEvent::RunContent { content, content_type, reasoning_content } => {
            RunEvent::RunContent { content: fit_value(content), content_type, reasoning_content }
        }
        RunEvent::RunCancelled { content, reason } => RunEvent::RunCancelled { content: fit_text(content), reason },
        other => other,
    }
}

fn fit_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(fit_text(text)),
        other if size(&other) > EVENT_TEXT_BYTES => Value::String("[too large for an event]".into()),
        other => other,
    }
}

fn fit_text(text: String) -> String {
    let mut bytes = 0;
    let cut = text.char_indices().find(|(_, c)| {
        bytes += json_bytes(*c);
        bytes > EVENT_TEXT_BYTES
    });
    match cut {
        Some((at, _)) => format!("{}…", prefix(&text, at)),
        None => text,
    }
}

/// Bytes of a character inside a JSON text.
fn json_bytes(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        c if c.is_ascii_control() => 6,
        c => c.len_utf8(),
    }
}

fn fit_tool(mut tool: ToolExecution) -> ToolExecution {
    if tool.tool_args.values().map(size).sum::<usize>() > EVENT_ARGUMENT_BYTES {
        tool.tool_args = shorten(tool.tool_args);
    }
    tool
}

fn shorten(arguments: Map<String, Value>) -> Map<String, Value> {
    arguments
        .into_iter()
        .take(32)
        .map(|(name, value)| match value {
            Value::String(text) => (name, Value::String(format!("{}…", prefix(&text, 200)))),
            other if size(&other) > 200 => (name, Value::String("…".into())),
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
        Value::String(text) => text.chars().map(json_bytes).sum::<usize>() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + size(value) + 4).sum::<usize>() + 2,
    }
}

/// Bounds what exec-server says of a workspace.
#[must_use]
pub fn fit_effect(effect: WorkspaceEffect) -> WorkspaceEffect {
    let WorkspaceEffect { workspace_id, files, removed, truncated } = effect;
    let (files, files_cut) = fit_paths(files);
    let (removed, removed_cut) = fit_paths(removed);
    let truncated = truncated || files_cut || removed_cut;
    WorkspaceEffect { workspace_id: prefix(&workspace_id, 128).to_owned(), files, removed, truncated }
}

/// Paths that are neither too many nor too long, and whether any was left out.
fn fit_paths(mut paths: Vec<String>) -> (Vec<String>, bool) {
    let had = paths.len();
    paths.retain(|path| path.len() <= NAME_BYTES);
    paths.truncate(WorkspaceEffect::MAX_FILES);
    let cut = paths.len() < had;
    (paths, cut)
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

    #[test]
    fn an_event_fits_whatever_its_text_is() {
        for c in ['x', '\u{1}', '"', 'ß'] {
            let text = c.to_string().repeat(300 << 10);
            let content = Value::String(text.clone());
            let completed = RunEvent::RunCompleted { content, content_type: "str".into(), metrics: None };
            let tool_args = (0..64).map(|n| (n.to_string(), Value::String(text.clone()))).collect();
            let result = Some(head_and_tail(&text, RESULT_CHARS));
            let tool = ToolExecution { tool_args, result, ..ToolExecution::default() };
            for event in [completed, RunEvent::ToolCallError { tool, error: text.clone() }] {
                let bytes = serde_json::to_string(&fit_event(event)).unwrap().len();
                assert!(bytes + 4096 < cadre_protocol::event::MAX_EVENT_BYTES, "{c:?}: {bytes}");
            }
        }
    }
}
