//! Opening files by path without leaving a folder.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::fchown;

use super::{Failure, RelPath, Workspace};
use cadre_protocol::exec::ExecErrorCode;

/// How often a lookup is repeated when a rename elsewhere disturbed it.
const ATTEMPTS: usize = 16;

/// Opens `path` below `root`. Links that stay inside are followed where the kernel can tell (`openat2`), and none where
/// it cannot. `flags` must not create: that is done with a descriptor of the folder.
pub(super) fn open_beneath(root: BorrowedFd<'_>, path: &RelPath, flags: OFlag) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    for _ in 0..ATTEMPTS {
        match openat2(root, &path.to_path(), OpenHow::new().flags(flags).resolve(resolve)) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // Old kernels, other kernels and seccomp filters.
            Err(Errno::ENOSYS | Errno::EPERM) => break,
            other => return other,
        }
    }
    open_by_steps(root, path, flags)
}

/// The same without `openat2`: one component at a time, following no link at all.
fn open_by_steps(root: BorrowedFd<'_>, path: &RelPath, flags: OFlag) -> Result<OwnedFd, Errno> {
    let Some((last, folders)) = path.parts().split_last() else {
        return openat(root, ".", flags, Mode::empty());
    };
    let step = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut folder: Option<OwnedFd> = None;
    for name in folders {
        folder = Some(openat(folder.as_ref().map_or(root, AsFd::as_fd), name.as_str(), step, Mode::empty())?);
    }
    let folder = folder.as_ref().map_or(root, AsFd::as_fd);
    let opened = openat(folder, last.as_str(), flags | OFlag::O_NOFOLLOW, Mode::empty())?;
    // With O_PATH, O_NOFOLLOW opens the link itself.
    if is_kind(&fstat(&opened)?, SFlag::S_IFLNK) { Err(Errno::ELOOP) } else { Ok(opened) }
}

/// Whether a file is of this kind.
pub(super) fn is_kind(stat: &FileStat, kind: SFlag) -> bool {
    stat.st_mode & SFlag::S_IFMT.bits() == kind.bits()
}

/// The size of a file, in bytes.
pub(super) fn size(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

impl Workspace {
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a folder for reading its entries.
    pub(super) fn open_folder(&self, path: &RelPath) -> Result<Dir, Failure> {
        open_beneath(self.root(), path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
            .and_then(Dir::from_fd)
            .map_err(|error| Failure::at(path, error))
    }

    /// A descriptor of a folder that a command can start in.
    pub(crate) fn open_cwd(&self, path: &RelPath) -> Result<OwnedFd, Failure> {
        open_beneath(self.root(), path, OFlag::O_PATH | OFlag::O_DIRECTORY).map_err(|error| Failure::at(path, error))
    }

    /// Opens a regular file for reading.
    pub(super) fn open_file(&self, path: &RelPath) -> Result<(File, FileStat), Failure> {
        // Without O_NONBLOCK, opening a pipe would wait for its other end.
        let opened = open_beneath(self.root(), path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY);
        regular(path, opened.map_err(|error| Failure::at(path, error))?)
    }

    /// Opens a folder, making it and those above it.
    pub(super) fn make_folder(&self, path: &RelPath) -> Result<OwnedFd, Failure> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        match open_beneath(self.root(), path, flags) {
            Err(Errno::ENOENT) => {}
            other => return other.map_err(|error| Failure::at(path, error)),
        }
        let Some((above, name)) = path.split() else { return Err(Failure::at(path, Errno::ENOENT)) };
        let above = self.make_folder(&above)?;
        match mkdirat(&above, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(Failure::at(path, error)),
        }
        let made = openat(
            &above,
            name,
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Mode::empty(),
        );
        let made = made.map_err(|error| Failure::at(path, error))?;
        self.give(&made, path)?;
        Ok(made)
    }

    /// Gives something new to the user that commands run as.
    pub(super) fn give(&self, made: &impl AsFd, path: &RelPath) -> Result<(), Failure> {
        let Some((user, group)) = self.owner else { return Ok(()) };
        fchown(made, Some(user), Some(group)).map_err(|error| Failure::at(path, error))
    }
}

/// Makes sure that a descriptor is of a regular file.
pub(super) fn regular(path: &RelPath, opened: OwnedFd) -> Result<(File, FileStat), Failure> {
    let stat = fstat(&opened).map_err(|error| Failure::at(path, error))?;
    if is_kind(&stat, SFlag::S_IFREG) {
        return Ok((File::from(opened), stat));
    }
    let what = if is_kind(&stat, SFlag::S_IFDIR) { "is a folder" } else { "is a special file" };
    Err(Failure::new(ExecErrorCode::WrongKind, format!("{path}: {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Links and what each way to open says about them: with the kernel's help, and by steps.
    #[test]
    fn no_link_leads_out() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("in/deep")).unwrap();
        std::fs::write(at("in/file"), "inside").unwrap();
        symlink(outside.path().join("secret"), at("absolute")).unwrap();
        symlink("../".repeat(20) + "etc/passwd", at("relative")).unwrap();
        symlink(outside.path(), at("folder")).unwrap();
        symlink("/proc/self/root", at("magic")).unwrap();
        symlink("loop", at("loop")).unwrap();
        symlink("../..", at("in/deep/up")).unwrap();
        symlink("in/file", at("inside")).unwrap();
        let root = File::open(folder.path()).unwrap();
        let table = [
            ("in/file", true, true),
            ("inside", true, false),
            ("absolute", false, false),
            ("relative", false, false),
            ("folder/secret", false, false),
            ("magic/etc/passwd", false, false),
            ("loop", false, false),
            ("in/deep/up/in/file", true, false),
            ("in/deep/up/relative", false, false),
        ];
        for (path, kernel, steps) in table {
            let path = RelPath::parse(path).unwrap();
            assert_eq!(open_beneath(root.as_fd(), &path, OFlag::O_RDONLY).is_ok(), kernel, "{path}");
            assert_eq!(open_by_steps(root.as_fd(), &path, OFlag::O_RDONLY).is_ok(), steps, "{path} by steps");
            assert_eq!(open_by_steps(root.as_fd(), &path, OFlag::O_PATH).is_ok(), steps, "{path} by steps");
        }
    }
}
