//! How full the folders are whose size the node bounds: above its limit the pod is evicted, and what it holds is gone.
//!
//! Owns the looks and the words. Must not end a process or refuse a request itself.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cadre_protocol::exec::ExecOp;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Percent of a limit up to which a folder may be filled.
const PERCENT: u64 = 90;
/// Shortest pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// The same for what commands have left behind.
const LATER: Duration = Duration::from_secs(5);
/// A look takes at most this part of the time.
const PART: u32 = 20;
/// Most entries of a folder that are counted: what has more is emptier than it seems, never fuller.
const MAX_ENTRIES: usize = 500_000;

/// A folder, and the bytes that it may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounded {
    /// The folder.
    pub path: PathBuf,
    /// Bytes.
    pub limit: u64,
}

/// All such folders.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room(Arc<[Bounded]>);

/// Bytes in each folder at one time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Used(Vec<u64>);

impl Room {
    pub(crate) fn new(folders: Vec<Bounded>) -> Self {
        Self(folders.into())
    }

    /// Looks once. Blocks.
    pub(crate) fn used(&self) -> Used {
        Used(self.0.iter().map(|folder| bytes_in(&folder.path)).collect())
    }

    /// The first folder that is nearly full, in words, unless it was as full as this before.
    pub(crate) fn crowded(&self, before: &Used, now: &Used) -> Option<String> {
        self.0.iter().zip(&now.0).enumerate().find_map(|(index, (folder, used))| {
            let grown = before.0.get(index).is_none_or(|before| used > before);
            let full = *used > folder.limit / 100 * PERCENT;
            (full && grown).then(|| {
                let (path, used, limit) = (folder.path.display(), mebibytes(*used), mebibytes(folder.limit));
                format!(
                    "{path} holds {used} MiB; above {limit} MiB the sandbox would be lost. Remove what is not needed."
                )
            })
        })
    }

    /// The same folders, but only this one of them.
    pub(crate) fn only(&self, path: &Path) -> Self {
        Self(self.0.iter().filter(|folder| folder.path == path).cloned().collect())
    }

    /// Why a request that makes a file longer is not carried out. What makes one shorter always is. Blocks.
    pub(crate) fn refuses(&self, op: &ExecOp) -> Option<String> {
        let folder = self.0.first()?;
        let length = |path: &str| std::fs::symlink_metadata(folder.path.join(path)).map_or(0, |found| found.len());
        let grows = match op {
            ExecOp::Write { path, content } => content.len() as u64 > length(path),
            ExecOp::Edit { old, new, .. } => new.len() > old.len(),
            ExecOp::Stage { .. } => true,
            _ => false,
        };
        if grows { self.crowded(&Used::default(), &self.used()) } else { None }
    }

    /// Looks again and again until a folder is nearly full, and says which.
    pub(crate) async fn until_crowded(&self, before: &Used) -> String {
        self.look(PAUSE, |now| self.crowded(before, now)).await
    }

    /// Waits until a folder is nearly full and still grows though no command is there to be ended for it.
    pub(crate) async fn until_filled(&self) -> String {
        let mut before = Used::default();
        self.look(LATER, |now| {
            let known = !before.0.is_empty();
            let crowded = self.crowded(&before, now).filter(|_| known);
            before.clone_from(now);
            crowded
        })
        .await
    }

    async fn look(&self, shortest: Duration, mut found: impl FnMut(&Used) -> Option<String>) -> String {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let mut pause = shortest;
        loop {
            sleep(pause).await;
            let (room, began) = (self.clone(), Instant::now());
            let Ok(now) = spawn_blocking(move || room.used()).await else { continue };
            if let Some(words) = found(&now) {
                return words;
            }
            pause = shortest.max(began.elapsed() * PART);
        }
    }
}

fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Bytes on the disk below a folder, as far as it can be read. A file with several names counts once.
fn bytes_in(root: &Path) -> u64 {
    let (mut folders, mut linked, mut sum, mut seen) = (vec![root.to_path_buf()], HashSet::new(), 0_u64, 0);
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MAX_ENTRIES {
                return sum;
            }
            // Of a link this is the link itself.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                folders.push(entry.path());
            } else if found.nlink() > 1 && !linked.insert((found.dev(), found.ino())) {
                continue;
            }
            sum = sum.saturating_add(found.blocks().saturating_mul(512));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_once_and_links_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("in/deep");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a"), vec![1; 1 << 20]).unwrap();
        let with_one = bytes_in(root.path());
        assert!(with_one >= 1 << 20, "{with_one}");
        std::fs::hard_link(folder.join("a"), folder.join("b")).unwrap();
        std::os::unix::fs::symlink("/", folder.join("c")).unwrap();
        assert!(bytes_in(root.path()) < with_one + (64 << 10));
    }

    #[test]
    fn a_full_folder_takes_only_what_makes_it_emptier() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), vec![1; 1 << 20]).unwrap();
        let write = |content: &str| ExecOp::Write { path: "a".into(), content: content.into() };
        let room = |limit| Room::new(vec![Bounded { path: root.path().into(), limit }]).only(root.path());
        assert_eq!(room(2 << 20).refuses(&write(&"x".repeat(2 << 20))), None);
        assert!(room(1 << 20).refuses(&write(&"x".repeat(2 << 20))).is_some());
        assert_eq!(room(1 << 20).refuses(&write("short")), None);
        assert_eq!(room(1 << 20).refuses(&ExecOp::Missing { paths: Vec::new() }), None);
        assert_eq!(Room::default().refuses(&write("x")), None);
    }

    #[test]
    fn only_what_has_grown_is_crowded() {
        let room = Room::new(vec![Bounded { path: "/w".into(), limit: 100 << 20 }]);
        let used = |mebibytes: u64| Used(vec![mebibytes << 20]);
        assert_eq!(room.crowded(&used(0), &used(90)), None);
        let words = room.crowded(&used(0), &used(91)).unwrap();
        assert!(words.starts_with("/w holds 91 MiB; above 100 MiB"), "{words}");
        assert_eq!(room.crowded(&used(95), &used(94)), None, "it is being emptied");
        assert!(room.crowded(&Used::default(), &used(91)).is_some());
    }
}
