//! Replacing text in a file.

use std::io::Read;

use cadre_protocol::exec::{ExecBody, ExecErrorCode};

use super::beneath::size;
use super::{Failure, RelPath, Workspace};

/// Largest file that is edited, before and after, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Most places that a message names.
const NAMED_PLACES: usize = 10;

impl Workspace {
    /// Replaces `old` by `new`: its only occurrence, or every one if `all`.
    pub(super) fn edit(&self, path: &str, old: &str, new: &str, all: bool) -> Result<ExecBody, Failure> {
        let path = RelPath::parse_file(path)?;
        let (file, stat) = self.open_file(&path)?;
        let too_large = || Failure::new(ExecErrorCode::TooLarge, format!("{path}: is longer than 16 MiB"));
        if size(&stat) > MAX_FILE_BYTES {
            return Err(too_large());
        }
        let mut content = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content).map_err(|error| Failure::io(&path, &error))?;
        let content = String::from_utf8(content)
            .map_err(|_| Failure::new(ExecErrorCode::WrongKind, format!("{path}: is not UTF-8 text")))?;
        let edited = replace(&content, old, new, all, MAX_FILE_BYTES).map_err(|problem| match problem {
            Problem::TooLarge => too_large(),
            Problem::NoMatch(why) => Failure::new(ExecErrorCode::NoMatch, format!("{path}: {why}")),
        })?;
        self.write_whole(&path, edited.as_bytes())?;
        Ok(self.effect(vec![path.to_string()]))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Problem {
    NoMatch(String),
    TooLarge,
}

fn replace(content: &str, old: &str, new: &str, all: bool, max: u64) -> Result<String, Problem> {
    if old.is_empty() {
        return Err(Problem::NoMatch("the text to replace is empty".to_owned()));
    }
    let count = content.matches(old).count();
    if count == 0 {
        return Err(Problem::NoMatch(absent(content, old)));
    }
    if count > 1 && !all {
        return Err(Problem::NoMatch(ambiguous(content, old, count)));
    }
    let grown = (content.len() + count * new.len()).saturating_sub(count * old.len());
    if grown as u64 > max { Err(Problem::TooLarge) } else { Ok(content.replace(old, new)) }
}

fn absent(content: &str, old: &str) -> String {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let hint = if content.contains("\r\n") && content.replace("\r\n", "\n").contains(old) {
        "; the file's lines end with CRLF"
    } else if squeeze(content).contains(&squeeze(old)) && !squeeze(old).is_empty() {
        "; it does with other white space"
    } else {
        ""
    };
    format!("the text to replace does not occur (0 matches){hint}. Read the file again and copy the text exactly")
}

fn ambiguous(content: &str, old: &str, count: usize) -> String {
    let mut lines = Vec::new();
    let (mut line, mut seen) = (1, 0);
    for (at, _) in content.match_indices(old).take(NAMED_PLACES) {
        line += content[seen..at].matches('\n').count();
        seen = at;
        lines.push(line.to_string());
    }
    let more = if count > NAMED_PLACES { ", …" } else { "" };
    format!(
        "the text to replace occurs {count} times (lines {}{more}). Add text around it until it is the only one, or replace all",
        lines.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(content: &str, old: &str) -> String {
        match replace(content, old, "x", false, 1000) {
            Err(Problem::NoMatch(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_match_is_replaced_and_all_only_if_asked() {
        assert_eq!(replace("a b c", "b", "é", false, 100), Ok("a é c".to_owned()));
        assert_eq!(replace("b b", "b", "c", true, 100), Ok("c c".to_owned()));
        assert_eq!(replace("b b", "b", "xxxx", true, 8), Err(Problem::TooLarge));
    }

    #[test]
    fn the_message_tells_how_to_go_on() {
        assert!(problem("a\nb\na\n", "a").contains("2 times (lines 1, 3)"));
        assert!(problem("a\n", "z").contains("0 matches"));
        assert!(problem("a\r\nb", "a\nb").contains("CRLF"));
        assert!(problem("a   b", "a b").contains("white space"));
        assert!(problem("a", "").contains("empty"));
    }
}
