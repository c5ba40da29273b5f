//! Files that earlier tool calls wrote and that a new workspace does not have. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::RunId;
use cadre_protocol::journal::RecordedEffect;
use cadre_protocol::message::{Message, NOTE, Role};
use serde_json::{Map, Value};

/// Most files that are asked after.
const MAX_FILES: usize = 2000;
/// Most files that are named to the model.
const MAX_NAMED: usize = 100;

/// What is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollback {
    /// Files.
    pub files: Vec<String>,
    /// Calls that wrote them: id and tool.
    pub calls: Vec<(String, String)>,
}

/// Files whose last change was in a workspace other than this one, and where to look for their calls.
#[must_use]
pub fn candidates<'a>(effects: &'a [RecordedEffect], workspace_id: &str) -> BTreeMap<&'a str, &'a RecordedEffect> {
    let mut last: BTreeMap<&str, &RecordedEffect> = BTreeMap::new();
    for effect in effects {
        for file in &effect.effect.files {
            last.insert(file, effect);
        }
    }
    last.retain(|_, effect| effect.effect.workspace_id != workspace_id);
    last.into_iter().take(MAX_FILES).collect()
}

/// The candidates that are missing.
#[must_use]
pub fn losses(candidates: &BTreeMap<&str, &RecordedEffect>, missing: &[String]) -> Option<Rollback> {
    let missing: BTreeSet<&str> = missing.iter().map(String::as_str).collect();
    let lost: Vec<_> = candidates.iter().filter(|(file, _)| missing.contains(**file)).collect();
    let calls: BTreeSet<_> =
        lost.iter().map(|(_, effect)| (effect.tool_call_id.clone(), effect.tool_name.clone())).collect();
    let files: Vec<String> = lost.iter().map(|(file, _)| (**file).to_owned()).collect();
    (!files.is_empty()).then(|| Rollback { files, calls: calls.into_iter().collect() })
}

/// Id of the message that tells the model: the same news is not told twice.
#[must_use]
pub fn message_id(workspace_id: &str, run_id: &RunId) -> String {
    format!("{}{run_id}", message_id_prefix(workspace_id))
}

/// How the ids of such messages for this workspace begin.
#[must_use]
pub fn message_id_prefix(workspace_id: &str) -> String {
    let name: String = workspace_id.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    format!("workspace-{name}-")
}

impl Rollback {
    /// For streams.
    #[must_use]
    pub fn event(&self) -> RunEvent {
        let files = self.files.iter().take(MAX_NAMED).cloned().map(Value::String).collect();
        let calls = self.calls.iter().take(MAX_NAMED);
        let calls = calls.map(|(id, tool)| serde_json::json!({"tool_call_id": id, "tool_name": tool})).collect();
        RunEvent::CustomEvent {
            kind: "workspace_rolled_back".into(),
            fields: Map::from_iter([
                ("files".to_owned(), Value::Array(files)),
                ("calls".to_owned(), Value::Array(calls)),
            ]),
        }
    }

    /// For the model.
    #[must_use]
    pub fn message(&self, id: String, now_ms: u64) -> Message {
        let mut text = format!(
            "{NOTE} The workspace was replaced by a new one. These files, which earlier tool calls had changed, are \
             not in it:\n"
        );
        for file in self.files.iter().take(MAX_NAMED) {
            text.push_str("- ");
            text.push_str(file);
            text.push('\n');
        }
        if let Some(more) = self.files.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            text.push_str(&format!("and {more} more.\n"));
        }
        text.push_str("Check what is there before you rely on it, and make again what you need.");
        Message { id, ..Message::text(Role::User, text, now_ms) }
    }
}

#[cfg(test)]
mod tests {
    use cadre_protocol::tool::WorkspaceEffect;

    use super::*;

    fn effect(call: &str, workspace: &str, files: &[&str]) -> RecordedEffect {
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        RecordedEffect {
            run_id: RunId::new("r").unwrap(),
            tool_call_id: call.into(),
            tool_name: "shell".into(),
            effect: WorkspaceEffect { workspace_id: workspace.into(), files, truncated: false },
        }
    }

    #[test]
    fn only_missing_files_of_other_workspaces_count() {
        let effects =
            [effect("1", "old", &["a", "b", "c"]), effect("2", "new", &["b", "d"]), effect("3", "older", &["e"])];
        let candidates = candidates(&effects, "new");
        assert_eq!(candidates.keys().copied().collect::<Vec<_>>(), ["a", "c", "e"]);
        let lost = losses(&candidates, &["a".into(), "d".into()]).unwrap();
        assert_eq!(lost, Rollback { files: vec!["a".into()], calls: vec![("1".into(), "shell".into())] });
        assert_eq!(losses(&candidates, &[]), None);
    }

    #[test]
    fn message_ids_cannot_be_forged_by_the_workspace() {
        let run = RunId::new("r").unwrap();
        assert_eq!(message_id("a-b/../c", &run), "workspace-abc-r");
    }
}
