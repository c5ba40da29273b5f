//! The identity of a workspace: a random id in a file of its own folder, so that a new volume has a new one.
//!
//! Commands can overwrite it, as they can everything in the workspace; the engine treats it as untrusted.

use std::io::Read;

use super::{Failure, RelPath, Workspace};

/// Length of a UUID in its usual form.
const LENGTH: usize = 36;

pub(super) fn read_or_create(workspace: &Workspace) -> Result<String, Failure> {
    let path = RelPath::private("workspace-id");
    if let Some(id) = read(workspace, &path) {
        return Ok(id);
    }
    let id = uuid::Uuid::new_v4().to_string();
    workspace.write_whole(&path, id.as_bytes())?;
    Ok(id)
}

/// The stored id; what is no id counts as none.
fn read(workspace: &Workspace, path: &RelPath) -> Option<String> {
    let (file, _) = workspace.open_file(path).ok()?;
    let mut text = String::new();
    file.take(LENGTH as u64 + 2).read_to_string(&mut text).ok()?;
    let id = text.trim();
    (id.len() == LENGTH && uuid::Uuid::try_parse(id).is_ok()).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_until_it_is_lost_or_spoilt() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Workspace::open(folder.path(), None).unwrap().id().to_owned();
        let first = open();
        assert_eq!(open(), first);
        std::fs::write(folder.path().join(".cadre/workspace-id"), "a\nb").unwrap();
        let second = open();
        assert_ne!(second, first);
        assert_eq!(open(), second);
    }
}
