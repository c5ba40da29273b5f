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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rollback {
    /// Files that are not there.
    pub files: Vec<String>,
    /// Uploaded files that are as they were uploaded: what calls had made of them is gone.
    pub reset: Vec<String>,
    /// Calls that wrote them: id and tool.
    pub calls: Vec<(String, String)>,
    /// Whether more may be lost, because not all changes are known.
    pub may_be_more: bool,
}

/// What may be lost.
#[derive(Debug)]
pub struct Candidates<'a> {
    /// Files that were last written in a workspace other than this one, with the call that did it.
    pub written: BTreeMap<&'a str, &'a RecordedEffect>,
    /// Whether there are more than are named.
    pub may_be_more: bool,
}

/// What was last written in a workspace other than this one. What was removed last is not lost.
#[must_use]
pub fn candidates<'a>(effects: &'a [RecordedEffect], workspace_id: &str) -> Candidates<'a> {
    let elsewhere = |effect: &RecordedEffect| effect.effect.workspace_id != workspace_id;
    let mut last: BTreeMap<&str, &RecordedEffect> = BTreeMap::new();
    for effect in effects {
        for file in &effect.effect.removed {
            last.remove(file.as_str());
        }
        last.extend(effect.effect.files.iter().map(|file| (file.as_str(), effect)));
    }
    last.retain(|_, effect| elsewhere(effect));
    let is_cut = last.len() > MAX_FILES
        || effects.len() >= RecordedEffect::MAX
        || effects.iter().any(|effect| elsewhere(effect) && effect.effect.truncated);
    Candidates { written: last.into_iter().take(MAX_FILES).collect(), may_be_more: is_cut }
}

impl Candidates<'_> {
    /// What is lost, given what is missing of them, uploads that are absent, and uploads that were brought again.
    #[must_use]
    pub fn losses(&self, missing: &[String], absent: &BTreeSet<String>, reset: &BTreeSet<String>) -> Option<Rollback> {
        let missing: BTreeSet<&String> =
            missing.iter().filter(|path| self.written.contains_key(path.as_str())).collect();
        let lost = missing.iter().copied().chain(reset).filter_map(|path| self.written.get(path.as_str()));
        let calls: BTreeSet<_> = lost.map(|effect| (effect.tool_call_id.clone(), effect.tool_name.clone())).collect();
        let files: BTreeSet<&String> = missing.into_iter().chain(absent).collect();
        if files.is_empty() && reset.is_empty() {
            return None;
        }
        Some(Rollback {
            files: files.into_iter().cloned().collect(),
            reset: reset.iter().cloned().collect(),
            calls: calls.into_iter().collect(),
            may_be_more: self.may_be_more,
        })
    }
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
        let named = |files: &[String]| files.iter().take(MAX_NAMED).cloned().map(Value::String).collect();
        let calls = self.calls.iter().take(MAX_NAMED);
        let calls = calls.map(|(id, tool)| serde_json::json!({"tool_call_id": id, "tool_name": tool})).collect();
        let is_cut = self.may_be_more || self.files.len() > MAX_NAMED || self.reset.len() > MAX_NAMED;
        let mut fields = Map::from_iter([
            ("files".to_owned(), Value::Array(named(&self.files))),
            ("calls".to_owned(), Value::Array(calls)),
            ("may_be_more".to_owned(), Value::Bool(is_cut)),
        ]);
        if !self.reset.is_empty() {
            fields.insert("reset".to_owned(), Value::Array(named(&self.reset)));
        }
        RunEvent::CustomEvent { kind: "workspace_rolled_back".into(), fields }
    }

    /// For the model.
    #[must_use]
    pub fn message(&self, id: String, now_ms: u64) -> Message {
        let mut text = format!("{NOTE} The workspace was replaced by a new one.");
        tell(&mut text, "These files, which the old one had, are not in it:", &self.files);
        tell(&mut text, "These are again as they were uploaded, without later changes:", &self.reset);
        text.push('\n');
        if self.may_be_more {
            text.push_str("There may be more: not all changes are known. ");
        }
        text.push_str("Check what is there before you rely on it, and make again what you need.");
        Message { id, ..Message::text(Role::User, text, now_ms) }
    }
}

fn tell(text: &mut String, what: &str, files: &[String]) {
    if files.is_empty() {
        return;
    }
    text.push_str(if text.ends_with('.') { " " } else { "\n" });
    text.push_str(what);
    for file in files.iter().take(MAX_NAMED) {
        text.push_str("\n- ");
        text.push_str(file);
    }
    if let Some(more) = files.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
        text.push_str(&format!("\nand {more} more."));
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
            run_seq: 1,
            tool_call_id: call.into(),
            tool_name: "shell".into(),
            effect: WorkspaceEffect { workspace_id: workspace.into(), files, ..WorkspaceEffect::default() },
        }
    }

    fn removes(mut effect: RecordedEffect, file: &str) -> RecordedEffect {
        effect.effect.removed = vec![file.into()];
        effect
    }

    fn paths(files: &[&str]) -> BTreeSet<String> {
        files.iter().map(|file| (*file).to_owned()).collect()
    }

    fn lost(candidates: &Candidates<'_>, missing: &[&str]) -> Option<Rollback> {
        let missing: Vec<String> = missing.iter().map(|file| (*file).to_owned()).collect();
        candidates.losses(&missing, &paths(&[]), &paths(&[]))
    }

    #[test]
    fn only_missing_files_of_other_workspaces_count() {
        let effects =
            [effect("1", "old", &["a", "b", "c"]), effect("2", "new", &["b", "d"]), effect("3", "older", &["e"])];
        let candidates = candidates(&effects, "new");
        assert_eq!(candidates.written.keys().copied().collect::<Vec<_>>(), ["a", "c", "e"]);
        let calls = vec![("1".into(), "shell".into())];
        let expected = Rollback { files: vec!["a".into()], calls, ..Rollback::default() };
        assert_eq!(lost(&candidates, &["a", "d"]), Some(expected));
        assert_eq!(lost(&candidates, &[]), None);
    }

    #[test]
    fn what_was_removed_last_is_not_lost() {
        let effects = [
            effect("1", "old", &["a", "b"]),
            removes(effect("2", "old", &[]), "a"),
            removes(effect("3", "older", &[]), "b"),
            effect("4", "old", &["b"]),
        ];
        let candidates = candidates(&effects, "new");
        assert_eq!(candidates.written.keys().copied().collect::<Vec<_>>(), ["b"], "it was written again");
        assert_eq!(lost(&candidates, &["a"]), None);
    }

    #[test]
    fn that_more_may_be_lost_is_said() {
        let told = |effects: &[RecordedEffect]| {
            let losses = lost(&candidates(effects, "new"), &["a"]).unwrap();
            let told = losses.message("id".into(), 0).content.contains("There may be more");
            assert_eq!(serde_json::to_value(losses.event()).unwrap()["may_be_more"], told);
            told
        };
        let cut = |workspace: &str| {
            let mut cut = effect("2", workspace, &["b"]);
            cut.effect.truncated = true;
            cut
        };
        let first = effect("1", "old", &["a"]);
        assert!(!told(std::slice::from_ref(&first)));
        assert!(told(&[first.clone(), cut("old")]));
        assert!(!told(&[first.clone(), cut("new")]), "what is unknown there is not lost");
        assert!(told(&vec![first.clone(); RecordedEffect::MAX]), "earlier ones are not known");
        let names: Vec<String> = (0..MAX_FILES).map(|number| format!("n{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(told(&[first, effect("2", "old", &names)]), "not all are asked after");
    }

    #[test]
    fn uploads_are_told_of_as_absent_or_reset() {
        let effects = [effect("1", "old", &["uploads/b"])];
        let losses = candidates(&effects, "new").losses(&[], &paths(&["uploads/a"]), &paths(&["uploads/b"])).unwrap();
        assert_eq!((losses.files.as_slice(), losses.calls.len()), (["uploads/a".to_owned()].as_slice(), 1));
        let text = losses.message("id".into(), 0).content;
        let (absent, reset) = (text.find("- uploads/a").unwrap(), text.find("- uploads/b").unwrap());
        let said = text.find("as they were uploaded").unwrap();
        assert!(absent < said && said < reset, "{text}");
    }

    #[test]
    fn message_ids_cannot_be_forged_by_the_workspace() {
        let run = RunId::new("r").unwrap();
        assert_eq!(message_id("a-b/../c", &run), "workspace-abc-r");
    }
}
