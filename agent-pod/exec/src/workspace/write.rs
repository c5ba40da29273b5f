//! Writing whole files: a new file beside the old one, put in its place in one step.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use cadre_protocol::exec::{ExecBody, ExecErrorCode};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::beneath::is_kind;
use super::{Failure, RelPath, TEMPORARY, Workspace};

impl Workspace {
    /// Replaces a file, or makes it and its folders.
    pub(super) fn write(&self, path: &str, content: &str) -> Result<ExecBody, Failure> {
        let path = RelPath::parse_file(path)?;
        self.write_whole(&path, content.as_bytes())?;
        Ok(self.effect(vec![path.to_string()]))
    }

    /// The same for any bytes. Readers see the old content or the new, nothing between. The old file's mode is kept.
    pub(super) fn write_whole(&self, path: &RelPath, content: &[u8]) -> Result<(), Failure> {
        let Some((folder, name)) = path.split() else { return Err(Failure::at(path, Errno::EISDIR)) };
        let folder = self.make_folder(&folder)?;
        let mode = mode_of_replaced(&folder, name, path)?;
        let temporary = format!("{TEMPORARY}{}", uuid::Uuid::new_v4());
        let placed = self.write_new(&folder, &temporary, mode, content, path).and_then(|()| {
            renameat(&folder, temporary.as_str(), &folder, name).map_err(|error| Failure::at(path, error))
        });
        if placed.is_err() {
            // The first error is the one to tell; what stays is hidden.
            let _ = unlinkat(&folder, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        placed
    }

    fn write_new(
        &self,
        folder: &OwnedFd,
        name: &str,
        mode: Mode,
        content: &[u8],
        path: &RelPath,
    ) -> Result<(), Failure> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = openat(folder, name, flags, mode).map_err(|error| Failure::at(path, error))?;
        fchmod(&opened, mode).map_err(|error| Failure::at(path, error))?;
        self.give(&opened, path)?;
        File::from(opened).write_all(content).map_err(|error| Failure::io(path, &error))
    }
}

/// The mode that the new file gets: 0644, or that of the file it replaces. Only regular files are replaced.
fn mode_of_replaced(folder: &OwnedFd, name: &str, path: &RelPath) -> Result<Mode, Failure> {
    match fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) if is_kind(&stat, SFlag::S_IFREG) => Ok(Mode::from_bits_truncate(stat.st_mode & 0o777)),
        Ok(stat) => {
            let what = match () {
                () if is_kind(&stat, SFlag::S_IFDIR) => "is a folder",
                () if is_kind(&stat, SFlag::S_IFLNK) => "is a symbolic link; name the file that it points to",
                () => "is a special file",
            };
            Err(Failure::new(ExecErrorCode::WrongKind, format!("{path}: {what}")))
        }
        Err(Errno::ENOENT) => Ok(Mode::from_bits_truncate(0o644)),
        Err(error) => Err(Failure::at(path, error)),
    }
}
