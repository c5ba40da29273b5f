//! Files that came with the session's runs, and which of them a workspace has to get. Pure, but for what is remembered.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cadre_protocol::ids::BlobDigest;
use cadre_protocol::journal::RecordedEffect;
use cadre_protocol::run::Attachment;
use cadre_protocol::worker::Assignment;

/// Folder of the workspace where they are.
pub const FOLDER: &str = "uploads";
/// Most bytes of earlier runs' files that a new workspace gets: it has a size, and the turn waits for them.
pub const MAX_BYTES: u64 = 256 << 20;

/// Where a file is.
#[must_use]
pub fn path(file: &Attachment) -> String {
    format!("{FOLDER}/{}", file.name)
}

/// What a process has brought into a session's workspace: a further turn there need not look after it again.
#[derive(Debug, Default)]
pub struct Brought(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    workspace_id: String,
    files: HashSet<(String, BlobDigest)>,
}

impl Brought {
    /// Whether this file was brought into the workspace of this identity, or is known to be lost to it.
    #[must_use]
    pub fn has(&self, workspace_id: &str, file: &Attachment) -> bool {
        let known = self.known();
        known.workspace_id == workspace_id && known.files.contains(&(file.name.clone(), file.digest.clone()))
    }

    /// Remembers a file.
    pub fn add(&self, workspace_id: &str, file: &Attachment) {
        let mut known = self.known();
        if known.workspace_id != workspace_id {
            *known = Known { workspace_id: workspace_id.to_owned(), files: HashSet::new() };
        }
        known.files.retain(|(name, _)| *name != file.name);
        known.files.insert((file.name.clone(), file.digest.clone()));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that may have to be brought again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Old<'a> {
    /// The file.
    pub file: &'a Attachment,
    /// Place in the line of the earlier run that it came with; none when it came with this run.
    pub run_seq: Option<u64>,
}

/// What a workspace must have before the turn.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan<'a> {
    /// Files that nobody has seen yet.
    pub fresh: Vec<&'a Attachment>,
    /// Files that are there, unless the workspace is a new one; newest first.
    pub old: Vec<Old<'a>>,
}

/// What to bring. `known` says of an earlier run's file that it need not be looked after.
#[must_use]
pub fn plan<'a>(assignment: &'a Assignment, is_new: bool, known: impl Fn(&Attachment) -> bool) -> Plan<'a> {
    let own = &assignment.input.files;
    let earlier = assignment.uploads.files.iter().filter(|upload| {
        // One of the same name takes its place.
        !own.iter().any(|file| file.name == upload.file.name) && !known(&upload.file)
    });
    let earlier = earlier.map(|upload| Old { file: &upload.file, run_seq: Some(upload.run_seq) });
    if is_new {
        return Plan { fresh: own.iter().collect(), old: earlier.collect() };
    }
    let own = own.iter().map(|file| Old { file, run_seq: None });
    Plan { fresh: Vec::new(), old: own.chain(earlier).collect() }
}

/// What tool calls did to a file after it was brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Later {
    /// Nothing.
    Nothing,
    /// The last of them wrote it.
    Written,
    /// The last of them removed it.
    Removed,
}

/// The last changes that tool calls made to a session's files.
pub struct Touches<'a> {
    assignment: &'a Assignment,
    last: HashMap<&'a str, (&'a RecordedEffect, Later)>,
}

impl<'a> Touches<'a> {
    /// Those of an assignment.
    #[must_use]
    pub fn of(assignment: &'a Assignment) -> Self {
        let mut last = HashMap::new();
        for effect in &assignment.effects {
            last.extend(effect.effect.files.iter().map(|path| (path.as_str(), (effect, Later::Written))));
            last.extend(effect.effect.removed.iter().map(|path| (path.as_str(), (effect, Later::Removed))));
        }
        Self { assignment, last }
    }

    /// What became of a file.
    #[must_use]
    pub fn after(&self, old: &Old<'_>) -> Later {
        let Some((effect, later)) = self.last.get(path(old.file).as_str()) else { return Later::Nothing };
        let is_later = match old.run_seq {
            Some(seq) => effect.run_seq >= seq,
            None => effect.run_id == self.assignment.run_id,
        };
        if is_later { *later } else { Later::Nothing }
    }
}
