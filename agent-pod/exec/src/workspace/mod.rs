//! The workspace folder: every operation on its files, confined to it.
//!
//! Paths are resolved from a descriptor of the folder by the kernel, which refuses to leave it, so a symbolic link that
//! appears between check and use changes nothing. Nothing here starts a process or knows of the connection.

mod beneath;
mod edit;
mod effect;
mod identity;
mod list;
mod path;
mod read;
mod search;
mod stage;
mod walk;
mod write;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use cadre_protocol::exec::{ExecBody, ExecErrorCode, ExecOp};
use cadre_protocol::tool::WorkspaceEffect;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid};

pub(crate) use effect::Snapshot;
pub(crate) use path::RelPath;

/// Folder of the workspace that is ours: hidden from listings, searches and effects, and closed to every operation.
const PRIVATE: &str = ".cadre";
/// Start of the names of files that are being written.
const TEMPORARY: &str = ".cadre-writing-";

/// Why an operation could not be carried out; sent to the model as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: ExecErrorCode,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: ExecErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// What an error of the operating system at `path` means.
    fn at(path: &RelPath, error: Errno) -> Self {
        let (code, what) = match error {
            Errno::ENOENT => (ExecErrorCode::NotFound, "does not exist"),
            Errno::ENOTDIR => (ExecErrorCode::WrongKind, "goes through something that is no folder"),
            Errno::EISDIR => (ExecErrorCode::WrongKind, "is a folder"),
            Errno::ENXIO => (ExecErrorCode::WrongKind, "is a special file"),
            Errno::EXDEV | Errno::ELOOP => {
                (ExecErrorCode::InvalidPath, "is or goes through a link that is not followed")
            }
            Errno::ENAMETOOLONG => (ExecErrorCode::InvalidPath, "is too long"),
            Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => (ExecErrorCode::TooLarge, "does not fit on the volume"),
            other => (ExecErrorCode::Io, other.desc()),
        };
        Self::new(code, format!("{path}: {what}"))
    }

    fn io(path: &RelPath, error: &io::Error) -> Self {
        Self::at(path, error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }

    pub(crate) fn into_body(self) -> ExecBody {
        ExecBody::Failed { code: self.code, message: self.message }
    }
}

/// An open workspace.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: OwnedFd,
    id: String,
    owner: Option<(Uid, Gid)>,
}

impl Workspace {
    /// Opens the folder, and gives it an identity when it has none. Files made here belong to `owner`, when given.
    pub(crate) fn open(folder: &Path, owner: Option<(Uid, Gid)>) -> Result<Self, Failure> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let root = open(folder, flags, Mode::empty()).map_err(|error| Failure::at(&RelPath::root(), error))?;
        let mut workspace = Self { root, id: String::new(), owner };
        workspace.id = identity::read_or_create(&workspace)?;
        Ok(workspace)
    }

    /// Identity of the workspace: a new volume has a new one.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// An effect on these files.
    fn effect(&self, files: Vec<String>) -> ExecBody {
        ExecBody::Done {
            effect: WorkspaceEffect { workspace_id: self.id.clone(), files, ..WorkspaceEffect::default() },
        }
    }

    /// Carries out an operation on files. Blocks; other operations are refused.
    pub(crate) fn answer(&self, op: ExecOp) -> ExecBody {
        let answer = match op {
            ExecOp::List { path, recursive, limit } => self.list(&path, recursive, limit),
            ExecOp::Read { path, first_line, max_lines } => self.read(&path, first_line, max_lines),
            ExecOp::Write { path, content } => self.write(&path, &content),
            ExecOp::Edit { path, old, new, all } => self.edit(&path, &old, &new, all),
            ExecOp::Search { pattern, path, glob, limit } => self.search(&pattern, &path, glob.as_deref(), limit),
            ExecOp::Stage { path, offset, data } => self.stage(&path, offset, &data),
            ExecOp::Missing { paths } => Ok(self.missing(paths)),
            ExecOp::Hello { .. } | ExecOp::Run { .. } | ExecOp::Kill { .. } => {
                Err(Failure::new(ExecErrorCode::Io, "this is no operation on files"))
            }
        };
        answer.unwrap_or_else(Failure::into_body)
    }
}
