//! `list_files`, `read_file`, `write_file`, `edit_file`, `search_files`: the workspace's files.

use cadre_protocol::exec::{ExecOp, FileEntry};
use cadre_protocol::model::ToolSpec;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Outcome, spec};
use crate::engine::bounds::{self, RESULT_CHARS};

/// Names of the tools.
pub const NAMES: [&str; 5] = ["list_files", "read_file", "write_file", "edit_file", "search_files"];
const MAX_ENTRIES: usize = 500;
const MAX_LINES: usize = 2000;
const MAX_MATCHES: usize = 200;

#[derive(Deserialize)]
struct List {
    #[serde(default = "here")]
    path: String,
    #[serde(default)]
    recursive: bool,
}

#[derive(Deserialize)]
struct Read {
    path: String,
    #[serde(default = "one")]
    first_line: usize,
    #[serde(default = "max_lines")]
    max_lines: usize,
}

#[derive(Deserialize)]
struct Write {
    path: String,
    content: String,
}

#[derive(Deserialize)]
struct Edit {
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    replace_all: bool,
}

#[derive(Deserialize)]
struct Search {
    pattern: String,
    #[serde(default = "here")]
    path: String,
    #[serde(default)]
    glob: Option<String>,
}

fn here() -> String {
    ".".into()
}

fn one() -> usize {
    1
}

fn max_lines() -> usize {
    MAX_LINES
}

/// What the model is told of them.
#[must_use]
pub fn specs() -> Vec<ToolSpec> {
    let path = json!({"type": "string", "description": "Path relative to the workspace."});
    let folder = json!({"type": "string", "description": "Folder relative to the workspace; the workspace if absent."});
    vec![
        spec(
            "list_files",
            "Lists a folder of the workspace.",
            json!({"path": folder, "recursive": {"type": "boolean", "description": "Whether to descend."}}),
            &[],
        ),
        spec(
            "read_file",
            "Reads lines of a text file.",
            json!({
                "path": path,
                "first_line": {"type": "integer", "minimum": 1, "description": "First line, from 1."},
                "max_lines": {"type": "integer", "minimum": 1, "maximum": MAX_LINES, "description": "Most lines."},
            }),
            &["path"],
        ),
        spec(
            "write_file",
            "Writes a whole file, replacing what was there; creates folders as needed.",
            json!({"path": path, "content": {"type": "string", "description": "The file's whole content."}}),
            &["path", "content"],
        ),
        spec(
            "edit_file",
            "Replaces text in a file. The old text must occur exactly once, unless replace_all is true.",
            json!({
                "path": path,
                "old": {"type": "string", "description": "Text to replace, exactly as in the file."},
                "new": {"type": "string", "description": "What to put there."},
                "replace_all": {"type": "boolean", "description": "Whether to replace every occurrence."},
            }),
            &["path", "old", "new"],
        ),
        spec(
            "search_files",
            "Searches the contents of files with a regular expression; gives path, line and text of each match.",
            json!({
                "pattern": {"type": "string", "description": "Regular expression."},
                "path": folder,
                "glob": {"type": "string", "description": "Which file names, for example *.rs."},
            }),
            &["pattern"],
        ),
    ]
}

/// Whether a tool changes nothing.
#[must_use]
pub fn reads_only(name: &str) -> bool {
    matches!(name, "list_files" | "read_file" | "search_files")
}

/// Reads arguments.
pub fn read(name: &str, arguments: Value) -> Result<ExecOp, String> {
    Ok(match name {
        "list_files" => {
            let List { path, recursive } = parse(arguments)?;
            ExecOp::List { path, recursive, limit: MAX_ENTRIES }
        }
        "read_file" => {
            let Read { path, first_line, max_lines } = parse(arguments)?;
            ExecOp::Read { path, first_line: first_line.max(1), max_lines: max_lines.clamp(1, MAX_LINES) }
        }
        "write_file" => {
            let Write { path, content } = parse(arguments)?;
            ExecOp::Write { path, content }
        }
        "edit_file" => {
            let Edit { path, old, new, replace_all } = parse(arguments)?;
            ExecOp::Edit { path, old, new, all: replace_all }
        }
        "search_files" => {
            let Search { pattern, path, glob } = parse(arguments)?;
            ExecOp::Search { pattern, path, glob, limit: MAX_MATCHES }
        }
        _ => return Err(format!("there is no tool {name}")),
    })
}

fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, String> {
    serde_json::from_value(arguments).map_err(|error| error.to_string())
}

/// A folder in words.
#[must_use]
pub fn tell_listing(entries: &[FileEntry], truncated: bool) -> Outcome {
    if entries.is_empty() {
        return Outcome::ok("The folder is empty.");
    }
    let lines = entries.iter().map(|entry| match entry.directory {
        true => format!("{}/", entry.path),
        false => format!("{} ({} bytes)", entry.path, entry.size),
    });
    tell_lines(lines.collect(), truncated.then_some("[there are more entries]"))
}

/// Matches in words.
#[must_use]
pub fn tell_matches(lines: &[String], truncated: bool) -> Outcome {
    if lines.is_empty() {
        return Outcome::ok("No matches.");
    }
    tell_lines(lines.to_vec(), truncated.then_some("[there are more matches]"))
}

/// A file's lines in words.
#[must_use]
pub fn tell_text(text: &str, total_lines: usize, truncated: bool) -> Outcome {
    if text.is_empty() && !truncated {
        return Outcome::ok(format!("No lines here; the file has {total_lines}."));
    }
    let note = format!("[the file has {total_lines} lines; read on with first_line]");
    tell_lines(vec![text.to_owned()], truncated.then_some(&note))
}

fn tell_lines(lines: Vec<String>, note: Option<&str>) -> Outcome {
    let mut text = bounds::head_and_tail(&lines.join("\n"), RESULT_CHARS - 200);
    if let Some(note) = note {
        text.push('\n');
        text.push_str(note);
    }
    Outcome::ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_sensible_defaults() {
        let table = [
            ("list_files", json!({}), ExecOp::List { path: ".".into(), recursive: false, limit: MAX_ENTRIES }),
            (
                "read_file",
                json!({"path": "a", "first_line": 0, "max_lines": 9_999_999}),
                ExecOp::Read { path: "a".into(), first_line: 1, max_lines: MAX_LINES },
            ),
        ];
        for (name, arguments, op) in table {
            assert_eq!(read(name, arguments), Ok(op));
        }
    }

    #[test]
    fn folders_end_with_a_slash() {
        let entries = [
            FileEntry { path: "src".into(), directory: true, size: 0 },
            FileEntry { path: "a.txt".into(), directory: false, size: 3 },
        ];
        assert_eq!(tell_listing(&entries, true).text, "src/\na.txt (3 bytes)\n[there are more entries]");
    }
}
