//! Listing a folder.

use cadre_protocol::exec::{ExecBody, FileEntry};

use super::beneath::size;
use super::walk::Next;
use super::{Failure, RelPath, Workspace};

/// Most entries of a listing.
const MAX_LISTED: usize = 5_000;

impl Workspace {
    /// The entries of a folder, and of those below it if `recursive`.
    pub(super) fn list(&self, path: &str, recursive: bool, limit: usize) -> Result<ExecBody, Failure> {
        let mut entries = Vec::new();
        let left_out = self.walk(&RelPath::parse(path)?, |found| {
            let (path, directory) = (found.path.to_owned(), found.is_folder());
            entries.push(FileEntry { path, directory, size: if directory { 0 } else { size(&found.stat) } });
            if recursive { Next::Descend } else { Next::Pass }
        })?;
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let limit = limit.min(MAX_LISTED);
        let truncated = left_out || entries.len() > limit;
        entries.truncate(limit);
        Ok(ExecBody::Listing { entries, truncated })
    }
}
