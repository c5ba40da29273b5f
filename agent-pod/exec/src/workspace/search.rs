//! Searching file contents with a regular expression, in linear time and within bounds.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use cadre_protocol::exec::{ExecBody, ExecErrorCode};
use globset::{GlobBuilder, GlobMatcher};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag};
use regex::bytes::{Regex, RegexBuilder};

use super::beneath::{is_kind, regular, size};
use super::read::is_binary;
use super::walk::{Found, Next};
use super::{Failure, RelPath, Workspace};

/// Larger files are skipped, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most memory of a compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;
/// Most matches of an answer.
const MAX_MATCHES: usize = 2_000;
/// Longest line shown, in characters.
const MAX_LINE_CHARS: usize = 400;
/// Longest search.
const MAX_TIME: Duration = Duration::from_secs(10);

impl Workspace {
    /// Lines that match `pattern` in the text files below `path` (or in it, if it is a file) whose name, or path if
    /// `glob` has a slash, matches `glob`. Version control's own folder (`.git`) is not searched.
    pub(super) fn search(
        &self,
        pattern: &str,
        path: &str,
        glob: Option<&str>,
        limit: usize,
    ) -> Result<ExecBody, Failure> {
        let path = RelPath::parse(path)?;
        let mut search = Search::new(pattern, glob, limit.min(MAX_MATCHES))?;
        let walked = self.walk(&path, |found| search.visit(found));
        let left_out = match walked {
            Err(Failure { code: ExecErrorCode::WrongKind, .. }) => {
                let (file, stat) = self.open_file(&path)?;
                search.file(file, size(&stat), &path.to_string());
                false
            }
            other => other?,
        };
        Ok(ExecBody::Matches { lines: search.lines, truncated: left_out || search.truncated })
    }
}

struct Search {
    regex: Regex,
    glob: Option<(GlobMatcher, bool)>,
    limit: usize,
    end: Instant,
    lines: Vec<String>,
    truncated: bool,
}

impl Search {
    fn new(pattern: &str, glob: Option<&str>, limit: usize) -> Result<Self, Failure> {
        let invalid = |error: String| Failure::new(ExecErrorCode::InvalidPattern, error);
        let regex = RegexBuilder::new(pattern)
            .size_limit(MAX_PATTERN_BYTES)
            .dfa_size_limit(MAX_PATTERN_BYTES)
            .build()
            .map_err(|error| invalid(error.to_string()))?;
        let glob = match glob.filter(|glob| !glob.is_empty()) {
            None => None,
            Some(glob) => {
                let built = GlobBuilder::new(glob).literal_separator(true).build();
                Some((built.map_err(|error| invalid(error.to_string()))?.compile_matcher(), glob.contains('/')))
            }
        };
        Ok(Self { regex, glob, limit, end: Instant::now() + MAX_TIME, lines: Vec::new(), truncated: false })
    }

    fn visit(&mut self, found: &Found<'_>) -> Next {
        if self.truncated || Instant::now() > self.end {
            return Next::Stop;
        }
        if found.is_folder() {
            return if found.name == ".git" { Next::Pass } else { Next::Descend };
        }
        if is_kind(&found.stat, SFlag::S_IFREG) && self.wants(found) {
            self.open(found);
        }
        Next::Pass
    }

    fn wants(&self, found: &Found<'_>) -> bool {
        self.glob.as_ref().is_none_or(|(glob, whole)| glob.is_match(if *whole { found.path } else { found.name }))
    }

    fn open(&mut self, found: &Found<'_>) {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        let opened = openat(found.folder, found.name, flags, Mode::empty()).ok();
        let opened = opened.and_then(|opened| regular(&RelPath::root(), opened).ok());
        if let Some((file, stat)) = opened {
            self.file(file, size(&stat), found.path);
        }
    }

    fn file(&mut self, file: File, bytes: u64, path: &str) {
        let mut content = Vec::new();
        if bytes > MAX_FILE_BYTES || file.take(MAX_FILE_BYTES).read_to_end(&mut content).is_err() || is_binary(&content)
        {
            return;
        }
        for (number, line) in content.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !self.regex.is_match(line) {
                continue;
            }
            if self.lines.len() >= self.limit {
                self.truncated = true;
                return;
            }
            self.lines.push(format!("{path}:{}: {}", number + 1, shown(line)));
        }
    }
}

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(4 * MAX_LINE_CHARS)]);
    let mut shown: String = text.chars().take(MAX_LINE_CHARS).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    shown
}
