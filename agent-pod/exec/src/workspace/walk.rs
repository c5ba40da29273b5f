//! Walking through folders by descriptors: bounded, and following no link.

use std::collections::VecDeque;

use nix::dir::Dir;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstatat};

use super::beneath::is_kind;
use super::path::is_ours;
use super::{Failure, RelPath, Workspace};

/// Most entries that one walk looks at.
pub(super) const MAX_ENTRIES: usize = 20_000;

/// Something found on a walk.
pub(super) struct Found<'a> {
    /// Path relative to the workspace.
    pub(super) path: &'a str,
    pub(super) name: &'a str,
    pub(super) stat: FileStat,
    /// The folder that holds it.
    pub(super) folder: &'a Dir,
}

impl Found<'_> {
    pub(super) fn is_folder(&self) -> bool {
        is_kind(&self.stat, SFlag::S_IFDIR)
    }
}

/// What to do after an entry.
pub(super) enum Next {
    /// Go on, and into it if it is a folder.
    Descend,
    /// Go on, but not into it.
    Pass,
    /// End the walk.
    Stop,
}

impl Workspace {
    /// Shows every entry below `path` to `visit`, folder by folder. Returns whether anything was left out: too many
    /// entries, names that are not UTF-8, folders that could not be opened, or an end that `visit` asked for.
    pub(super) fn walk(&self, path: &RelPath, mut visit: impl FnMut(&Found<'_>) -> Next) -> Result<bool, Failure> {
        let mut folder = self.open_folder(path)?;
        let (mut at, mut waiting, mut seen, mut left_out) = (path.clone(), VecDeque::new(), 0, false);
        loop {
            let (names, all) = names(&mut folder, MAX_ENTRIES - seen);
            seen += names.len();
            left_out |= !all;
            for name in names {
                // What vanished meanwhile was not there.
                let Ok(stat) = fstatat(&folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
                let path = at.entry(&name);
                let found = Found { path: &path, name: &name, stat, folder: &folder };
                match visit(&found) {
                    Next::Stop => return Ok(true),
                    Next::Descend if found.is_folder() => waiting.push_back(path),
                    Next::Descend | Next::Pass => {}
                }
            }
            // Shallow folders first, so that what a bound leaves out lies deep.
            (at, folder) = loop {
                let Some(path) = waiting.pop_front() else { return Ok(left_out) };
                match RelPath::parse(&path).and_then(|path| self.open_folder(&path).map(|folder| (path, folder))) {
                    Ok(next) => break next,
                    Err(_) => left_out = true,
                }
            };
        }
    }
}

/// At most `limit` names of a folder, sorted, without ours; and whether these are all.
fn names(folder: &mut Dir, limit: usize) -> (Vec<String>, bool) {
    let (mut names, mut all) = (Vec::new(), true);
    for entry in folder.iter() {
        let Ok(entry) = entry else { return (names, false) };
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) if is_ours(name) => {}
            Ok(_) if names.len() >= limit => {
                all = false;
                break;
            }
            Ok(name) => names.push(name.to_owned()),
            Err(_) => all = false,
        }
    }
    names.sort_unstable();
    (names, all)
}
