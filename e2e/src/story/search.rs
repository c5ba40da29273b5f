//! Looks for a text wherever a container could see it: files, environments, command lines and memory.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::Result;

use super::node::Container;

/// Files that are larger are data of the image, not what somebody wrote.
const MAX_FILE: u64 = 256 << 20;
/// Bytes of memory that are read at once.
const PIECE: usize = 1 << 20;
/// Kernel file systems; /proc is searched by process.
const SKIPPED: [&str; 3] = ["proc", "sys", "dev"];

/// The places in a container where the text is.
///
/// # Errors
/// When its processes can't be listed.
pub fn container(container: &Container, text: &str) -> Result<Vec<String>> {
    let needle = text.as_bytes();
    let mut found = Vec::new();
    let root = container.root();
    for entry in fs::read_dir(&root)?.flatten() {
        if !SKIPPED.iter().any(|name| entry.file_name() == *name) {
            files(&entry.path(), needle, &mut found);
        }
    }
    for pid in container.pids()? {
        for name in ["environ", "cmdline"] {
            let content = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            note(contains(&content, needle), || format!("{name} of process {pid}"), &mut found);
        }
        note(memory(pid, needle), || format!("memory of process {pid}"), &mut found);
    }
    Ok(found)
}

fn note(is_there: bool, place: impl Fn() -> String, found: &mut Vec<String>) {
    if is_there {
        found.push(place());
    }
}

/// Files below a path; links are not followed.
pub fn files(path: &Path, needle: &[u8], found: &mut Vec<String>) {
    let Ok(metadata) = path.symlink_metadata() else { return };
    if metadata.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            files(&entry.path(), needle, found);
        }
    } else if metadata.is_file() && metadata.len() <= MAX_FILE {
        let content = fs::read(path).unwrap_or_default();
        note(contains(&content, needle), || path.display().to_string(), found);
    }
}

/// Whether a process has the text in memory that it can write.
fn memory(pid: u32, needle: &[u8]) -> bool {
    let Ok(mut memory) = File::open(format!("/proc/{pid}/mem")) else { return false };
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let writable = maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|way| way.starts_with("rw")));
    let ranges = writable.filter_map(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    ranges.into_iter().any(|(start, end)| in_range(&mut memory, start, end, needle).unwrap_or(false))
}

fn in_range(memory: &mut File, start: u64, end: u64, needle: &[u8]) -> std::io::Result<bool> {
    memory.seek(SeekFrom::Start(start))?;
    let mut range = memory.take(end - start);
    let mut window = Vec::with_capacity(PIECE + needle.len());
    loop {
        // The end of a piece stays, so that a text across two is found.
        let kept = window.len().saturating_sub(needle.len());
        window.drain(..kept);
        if range.by_ref().take(PIECE as u64).read_to_end(&mut window)? == 0 {
            return Ok(false);
        }
        if contains(&window, needle) {
            return Ok(true);
        }
    }
}

/// Whether bytes are in bytes.
#[must_use]
pub fn contains(content: &[u8], needle: &[u8]) -> bool {
    let Some((first, rest)) = needle.split_first() else { return true };
    let starts = content.iter().enumerate().filter(|(_, byte)| *byte == first);
    starts.into_iter().any(|(at, _)| content.get(at + 1..).is_some_and(|after| after.starts_with(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_is_there() {
        assert!(contains(b"xxabcxx", b"abc") && contains(b"abc", b"abc") && contains(b"aabc", b"abc"));
        assert!(!contains(b"ab", b"abc") && !contains(b"", b"abc"));
        let secret = format!("canary-{}", std::process::id());
        assert!(memory(std::process::id(), secret.as_bytes()));
    }

    #[test]
    fn it_looks_into_folders() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/file"), "a canary sings").unwrap();
        let mut found = Vec::new();
        files(folder.path(), b"canary", &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
