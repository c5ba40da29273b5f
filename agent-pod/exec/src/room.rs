//! How full the folders are whose size the node bounds: above its limit the pod is evicted, and what it holds is gone.
//!
//! One watcher for the whole server looks, and only while there are processes that could fill them. It ends the running
//! commands, or what commands have left behind, when a folder is nearly full and still grows. What requests write is added up
//! in between. Too many files are not counted all: such a folder is fuller than it seems.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cadre_protocol::exec::ExecOp;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::warn;

use crate::process::Processes;

/// Percent of a limit up to which a folder may be filled.
const PERCENT: u64 = 90;
/// Shortest pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// The same while a folder is nearly full.
const SHORT_PAUSE: Duration = Duration::from_millis(100);
/// Looks take at most this part of the time.
const PART: u32 = 50;
/// Most entries of a folder that are counted.
const MAX_ENTRIES: usize = 200_000;

/// A folder, and the bytes that it may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounded {
    /// The folder.
    pub path: PathBuf,
    /// Bytes.
    pub limit: u64,
}

/// All such folders.
#[derive(Debug)]
pub(crate) struct Room {
    folders: Vec<Bounded>,
    /// Which of them files are written to.
    workspace: Option<usize>,
    seen: Mutex<Seen>,
    crowded: watch::Sender<Option<Arc<str>>>,
}

/// What is known of the folders.
#[derive(Debug, Default)]
struct Seen {
    /// Bytes in each at the last look.
    used: Option<Vec<u64>>,
    /// Bytes that requests have written to the workspace since.
    written: u64,
}

impl Room {
    pub(crate) fn new(folders: Vec<Bounded>, workspace: &Path) -> Self {
        let workspace = folders.iter().position(|folder| folder.path == workspace);
        Self { folders, workspace, seen: Mutex::default(), crowded: watch::Sender::default() }
    }

    /// Why a request that writes a file is not carried out. Nothing at all can always be written. Blocks.
    pub(crate) fn refuses(&self, op: &ExecOp) -> Option<String> {
        let workspace = self.workspace?;
        let added = match op {
            ExecOp::Write { content, .. } => content.len(),
            ExecOp::Edit { old, new, .. } => new.len().saturating_sub(old.len()),
            ExecOp::Stage { data, .. } => data.len() / 4 * 3,
            _ => 0,
        } as u64;
        if added == 0 || self.takes(workspace, added) {
            return None;
        }
        // What was removed or replaced meanwhile is known after another look.
        let (_, now) = self.look();
        let full = || words(&self.folders[workspace], now[workspace]);
        (!self.takes(workspace, added)).then(full)
    }

    /// Whether there is room for so many more bytes, which are then counted. Not as long as nobody has looked.
    fn takes(&self, folder: usize, added: u64) -> bool {
        let mut seen = self.seen();
        let Some(used) = seen.used.as_ref().map(|used| used[folder]) else { return false };
        let takes = used.saturating_add(seen.written).saturating_add(added) <= share(&self.folders[folder]);
        if takes {
            seen.written += added;
        }
        takes
    }

    /// Waits until a folder is nearly full and says which. Only what comes from now on counts.
    pub(crate) fn until_crowded(&self) -> impl Future<Output = String> + Send + use<> {
        let mut news = self.crowded.subscribe();
        async move {
            loop {
                if news.changed().await.is_err() {
                    return std::future::pending().await;
                }
                if let Some(words) = news.borrow_and_update().as_deref() {
                    return words.to_owned();
                }
            }
        }
    }

    /// Looks as long as there are processes, and ends them before a folder is full.
    pub(crate) async fn keep(self: Arc<Self>, processes: &Processes) {
        if self.folders.is_empty() {
            return std::future::pending().await;
        }
        let (mut pause, mut were_there) = (Duration::ZERO, true);
        loop {
            sleep(pause).await;
            let are_there = processes.are_there();
            pause = PAUSE;
            // Once more after the last has gone: what it did is not the next one's doing.
            if !are_there && !std::mem::replace(&mut were_there, are_there) {
                continue;
            }
            were_there = are_there;
            let (room, began) = (Arc::clone(&self), Instant::now());
            let Ok((before, now)) = spawn_blocking(move || room.look()).await else { continue };
            let shortest = if self.is_any_crowded(&now) { SHORT_PAUSE } else { PAUSE };
            pause = shortest.max(began.elapsed() * PART);
            if let Some(words) = before.filter(|_| are_there).and_then(|before| self.fills(&before, &now)) {
                self.make_room(processes, words).await;
            }
        }
    }

    async fn make_room(&self, processes: &Processes, words: String) {
        if processes.are_running() {
            // Whoever waits for one tells the model.
            self.crowded.send_replace(Some(words.into()));
        } else {
            warn!(words, "what commands have left behind is ended");
            processes.stop_all().await;
        }
    }

    /// Bytes in each folder as they were to be expected, and as they are. Blocks.
    fn look(&self) -> (Option<Vec<u64>>, Vec<u64>) {
        let written = self.seen().written;
        let now: Vec<u64> = self.folders.iter().map(|folder| bytes_in(&folder.path)).collect();
        let mut seen = self.seen();
        seen.written = seen.written.saturating_sub(written);
        let mut before = seen.used.replace(now.clone());
        if let (Some(before), Some(workspace)) = (&mut before, self.workspace) {
            before[workspace] = before[workspace].saturating_add(written);
        }
        (before, now)
    }

    fn is_any_crowded(&self, now: &[u64]) -> bool {
        self.folders.iter().zip(now).any(|(folder, used)| *used > share(folder))
    }

    /// The first folder that is nearly full and still grows, in words.
    fn fills(&self, before: &[u64], now: &[u64]) -> Option<String> {
        let mut all = self.folders.iter().zip(before.iter().zip(now));
        all.find_map(|(folder, (before, now))| (now > before && *now > share(folder)).then(|| words(folder, *now)))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn share(folder: &Bounded) -> u64 {
    folder.limit / 100 * PERCENT
}

fn words(folder: &Bounded, used: u64) -> String {
    let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
    let (path, used, limit) = (folder.path.display(), mebibytes(used), mebibytes(folder.limit));
    format!("{path} holds {used} MiB; above {limit} MiB the sandbox would be lost. Remove what is not needed.")
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

    /// Bytes that the disk has no shorter way to keep.
    fn bytes(count: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..count).map(|_| next()).collect()
    }

    fn filled(folder: &Path, count: usize) {
        let file = std::fs::File::create(folder.join("a")).unwrap();
        std::io::Write::write_all(&mut &file, &bytes(count)).unwrap();
        // Blocks may be given only when they are written.
        file.sync_all().unwrap();
    }

    #[test]
    fn files_count_once_and_links_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("in/deep");
        std::fs::create_dir_all(&folder).unwrap();
        filled(&folder, 1 << 20);
        let with_one = bytes_in(root.path());
        assert!(with_one >= 1 << 20, "{with_one}");
        std::fs::hard_link(folder.join("a"), folder.join("b")).unwrap();
        std::os::unix::fs::symlink("/", folder.join("c")).unwrap();
        assert!(bytes_in(root.path()) < with_one + (64 << 10));
    }

    #[test]
    fn only_what_is_nearly_full_and_grows_fills() {
        let room = Room::new(vec![Bounded { path: "/w".into(), limit: 100 << 20 }], Path::new("/w"));
        let used = |mebibytes: u64| [mebibytes << 20];
        assert_eq!(room.fills(&used(0), &used(90)), None);
        let words = room.fills(&used(0), &used(91)).unwrap();
        assert!(words.starts_with("/w holds 91 MiB; above 100 MiB"), "{words}");
        assert_eq!(room.fills(&used(95), &used(94)), None, "it is being emptied");
    }

    #[test]
    fn what_requests_write_is_added_up_and_looked_at_again_when_it_is_much() {
        let root = tempfile::tempdir().unwrap();
        let write = |length: usize| ExecOp::Write { path: "b".into(), content: "x".repeat(length) };
        let room = Room::new(vec![Bounded { path: root.path().into(), limit: 4 << 20 }], root.path());
        assert_eq!(room.refuses(&write(2 << 20)), None);
        // As if the first had been replaced: only one of the two is there.
        assert_eq!(room.refuses(&write(2 << 20)), None);
        filled(root.path(), 3 << 20);
        assert!(room.refuses(&write(2 << 20)).is_some());
        assert_eq!(room.refuses(&write(0)), None);
        assert_eq!(room.refuses(&ExecOp::Missing { paths: Vec::new() }), None);
        let free = Room::new(Vec::new(), root.path());
        assert_eq!(free.refuses(&write(9 << 20)), None);
    }

    #[test]
    fn what_requests_wrote_is_nobody_elses_growth() {
        let root = tempfile::tempdir().unwrap();
        let room = Room::new(vec![Bounded { path: root.path().into(), limit: 2 << 20 }], root.path());
        assert_eq!(room.refuses(&ExecOp::Write { path: "a".into(), content: "x".repeat(1 << 20) }), None);
        filled(root.path(), 1 << 20);
        let (before, now) = room.look();
        let (before, now) = (before.unwrap()[0], now[0]);
        assert!(before >= 1 << 20 && now >= 1 << 20, "{before} {now}");
    }
}
