//! Which files a command changed: what differs between a look before and a look after.
//!
//! A file counts as changed when its time of modification, size or inode differs. Commands that run at the same time
//! see each other's changes: nobody can tell them apart from outside.

use std::collections::{BTreeSet, HashMap};

use cadre_protocol::tool::WorkspaceEffect;
use nix::sys::stat::FileStat;

use super::walk::Next;
use super::{RelPath, Workspace};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    seconds: i64,
    nanoseconds: i64,
    size: i64,
    inode: u64,
}

impl From<&FileStat> for Stamp {
    fn from(stat: &FileStat) -> Self {
        Self { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec, size: stat.st_size, inode: stat.st_ino }
    }
}

/// The files of a workspace at one time, as far as the bound of a walk allows.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    files: HashMap<String, Stamp>,
    left_out: bool,
}

impl Workspace {
    /// Looks at all files.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut files = HashMap::new();
        let walked = self.walk(&RelPath::root(), |found| {
            if !found.is_folder() {
                files.insert(found.path.to_owned(), Stamp::from(&found.stat));
            }
            Next::Descend
        });
        Snapshot { files, left_out: walked.unwrap_or(true) }
    }

    /// What changed since `before`.
    pub(crate) fn effect_since(&self, before: &Snapshot) -> WorkspaceEffect {
        WorkspaceEffect { workspace_id: self.id().to_owned(), ..changes(before, &self.snapshot()) }
    }
}

/// Written and removed files, sorted, and whether there may be more, of a workspace yet without a name. Where a look was
/// incomplete, a file that it lacks says nothing.
fn changes(before: &Snapshot, after: &Snapshot) -> WorkspaceEffect {
    let written = after.files.iter().filter(|(path, stamp)| match before.files.get(*path) {
        Some(old) => old != *stamp,
        None => !before.left_out,
    });
    let removed = before.files.iter().filter(|(path, _)| !after.left_out && !after.files.contains_key(*path));
    let (files, more_written) = listed(written.map(|(path, _)| path));
    let (removed, more_removed) = listed(removed.map(|(path, _)| path));
    let truncated = before.left_out || after.left_out || more_written || more_removed;
    WorkspaceEffect { workspace_id: String::new(), files, removed, truncated }
}

/// As many as an effect names, and whether there are more.
fn listed<'a>(paths: impl Iterator<Item = &'a String>) -> (Vec<String>, bool) {
    let sorted: BTreeSet<&String> = paths.collect();
    let more = sorted.len() > WorkspaceEffect::MAX_FILES;
    (sorted.into_iter().take(WorkspaceEffect::MAX_FILES).cloned().collect(), more)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(files: &[(&str, i64)], left_out: bool) -> Snapshot {
        let stamp = |seconds| Stamp { seconds, nanoseconds: 0, size: 1, inode: 1 };
        Snapshot { files: files.iter().map(|(path, time)| ((*path).to_owned(), stamp(*time))).collect(), left_out }
    }

    fn names(files: &[&str]) -> Vec<String> {
        files.iter().map(|file| (*file).to_owned()).collect()
    }

    fn effect(files: &[&str], removed: &[&str], truncated: bool) -> WorkspaceEffect {
        WorkspaceEffect { workspace_id: String::new(), files: names(files), removed: names(removed), truncated }
    }

    #[test]
    fn written_and_new_files_are_told_apart_from_removed_ones() {
        let before = look(&[("same", 1), ("edited", 1), ("gone", 1)], false);
        let after = look(&[("same", 1), ("edited", 2), ("new", 2)], false);
        assert_eq!(changes(&before, &after), effect(&["edited", "new"], &["gone"], false));
    }

    #[test]
    fn an_incomplete_look_claims_nothing_of_what_it_lacks() {
        let (full, partial) = (look(&[("a", 1), ("b", 1)], false), look(&[("a", 2)], true));
        assert_eq!(changes(&full, &partial), effect(&["a"], &[], true));
        assert_eq!(changes(&partial, &full), effect(&["a"], &[], true));
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
        let many = look(&names.iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>(), false);
        let written = changes(&look(&[], false), &many);
        assert_eq!((written.files.len(), written.truncated), (WorkspaceEffect::MAX_FILES, true));
        assert_eq!(written.files.last().map(String::as_str), Some("199"));
        let removed = changes(&many, &look(&[("new", 1)], false));
        assert_eq!((removed.removed.len(), removed.truncated), (WorkspaceEffect::MAX_FILES, true));
        assert_eq!(removed.files, ["new"], "what is there is not left out for what is gone");
    }
}
