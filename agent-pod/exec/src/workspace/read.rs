//! Reading a text file by lines.

use std::io::{BufRead, BufReader};

use cadre_protocol::exec::{ExecBody, ExecErrorCode};

use super::beneath::size;
use super::{Failure, RelPath, Workspace};

/// Largest file that is read for its lines, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Most bytes of text in an answer.
const MAX_TEXT_BYTES: usize = 512 << 10;
/// How much of a file's start is looked at to tell text from binary, in bytes.
pub(super) const SNIFFED_BYTES: usize = 8 << 10;

impl Workspace {
    /// Lines from `first_line` (counted from 1), at most `max_lines` of them.
    pub(super) fn read(&self, path: &str, first_line: usize, max_lines: usize) -> Result<ExecBody, Failure> {
        let path = RelPath::parse_file(path)?;
        let (file, stat) = self.open_file(&path)?;
        if size(&stat) > MAX_FILE_BYTES {
            return Err(Failure::new(ExecErrorCode::TooLarge, format!("{path}: is longer than 256 MiB")));
        }
        let mut reader = BufReader::with_capacity(64 << 10, std::io::Read::take(file, MAX_FILE_BYTES));
        let start = reader.fill_buf().map_err(|error| Failure::io(&path, &error))?;
        if is_binary(start) {
            return Err(Failure::new(ExecErrorCode::WrongKind, format!("{path}: is not a text file")));
        }
        let read = lines(&mut reader, first_line.max(1), max_lines).map_err(|error| Failure::io(&path, &error))?;
        let text = String::from_utf8_lossy(&read.text).into_owned();
        Ok(ExecBody::Text { text, total_lines: read.total, truncated: read.truncated })
    }
}

/// Whether the start of a file is not that of a text.
pub(super) fn is_binary(start: &[u8]) -> bool {
    start.iter().take(SNIFFED_BYTES).any(|byte| *byte == 0)
}

struct Lines {
    text: Vec<u8>,
    total: usize,
    truncated: bool,
}

/// Reads in pieces: neither a long file nor a long line is ever held whole.
fn lines(reader: &mut impl BufRead, first: usize, max: usize) -> std::io::Result<Lines> {
    let last = first.saturating_add(max);
    let (mut text, mut cut, mut line, mut open) = (Vec::new(), first > 1, 1, false);
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            break;
        }
        let newline = buffer.iter().position(|byte| *byte == b'\n');
        let piece = newline.map_or(buffer.len(), |at| at + 1);
        if (first..last).contains(&line) {
            let room = MAX_TEXT_BYTES.saturating_sub(text.len()).min(piece);
            text.extend_from_slice(&buffer[..room]);
            cut |= room < piece;
        } else {
            cut = true;
        }
        open = newline.is_none();
        line += usize::from(!open);
        reader.consume(piece);
    }
    Ok(Lines { text, total: line - usize::from(!open), truncated: cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_and_cut() {
        let read = |text: &str, first, max| {
            let read = lines(&mut text.as_bytes(), first, max).unwrap();
            (String::from_utf8(read.text).unwrap(), read.total, read.truncated)
        };
        assert_eq!(read("", 1, 10), (String::new(), 0, false));
        assert_eq!(read("a\nb", 1, 10), ("a\nb".into(), 2, false));
        assert_eq!(read("a\nb\nc\n", 2, 1), ("b\n".into(), 3, true));
        assert_eq!(read("a\n", 5, 1), (String::new(), 1, true));
        let (text, total, cut) = read(&"x".repeat(MAX_TEXT_BYTES * 2), 1, 1);
        assert_eq!((text.len(), total, cut), (MAX_TEXT_BYTES, 1, true));
    }
}
