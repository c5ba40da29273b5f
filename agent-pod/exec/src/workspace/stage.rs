//! Attachments, which come in pieces, and which of them are missing.

use std::io::{Seek, SeekFrom, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cadre_protocol::exec::{CHUNK_BYTES, ExecBody, ExecErrorCode};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::beneath::{open_beneath, regular, size};
use super::{Failure, RelPath, Workspace};

/// The only folder that attachments go to.
const UPLOADS: &str = "uploads";
/// Largest attachment, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

impl Workspace {
    /// Writes a piece at `offset`; 0 empties the file first. A piece may not leave a hole before it.
    pub(super) fn stage(&self, path: &str, offset: u64, data: &str) -> Result<ExecBody, Failure> {
        let path = RelPath::parse_file(path)?;
        let Some((folder, name)) = path.split().filter(|_| path.parts().first().is_some_and(|part| part == UPLOADS))
        else {
            return Err(Failure::new(ExecErrorCode::InvalidPath, format!("{path}: is not below {UPLOADS}/")));
        };
        if folder.parts().is_empty() {
            return Err(Failure::at(&path, Errno::EISDIR));
        }
        let data = piece(&path, offset, data)?;
        let folder = self.make_folder(&folder)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = openat(&folder, name, flags, Mode::from_bits_truncate(0o644));
        let (mut file, stat) = regular(&path, opened.map_err(|error| Failure::at(&path, error))?)?;
        // Emptying it would empty what it is called elsewhere, outside of the workspace perhaps.
        if stat.st_nlink > 1 {
            let problem = format!("{path}: has a second name (a hard link)");
            return Err(Failure::new(ExecErrorCode::WrongKind, problem));
        }
        if offset > size(&stat) {
            return Err(Failure::new(ExecErrorCode::Io, format!("{path}: the piece before this one is missing")));
        }
        self.give(&file, &path)?;
        file.set_len(offset)
            .and_then(|()| file.seek(SeekFrom::Start(offset)))
            .and_then(|_| file.write_all(&data))
            .map_err(|error| Failure::io(&path, &error))?;
        Ok(self.effect(vec![path.to_string()]))
    }

    /// Those of the paths that name nothing inside the workspace.
    pub(super) fn missing(&self, paths: Vec<String>) -> ExecBody {
        let there = |path: &String| {
            RelPath::parse(path).is_ok_and(|path| open_beneath(self.root(), &path, OFlag::O_PATH).is_ok())
        };
        ExecBody::Missing { paths: paths.into_iter().filter(|path| !there(path)).collect() }
    }
}

fn piece(path: &RelPath, offset: u64, data: &str) -> Result<Vec<u8>, Failure> {
    let data = STANDARD
        .decode(data)
        .map_err(|_| Failure::new(ExecErrorCode::Io, format!("{path}: the piece is not base64")))?;
    if data.len() > CHUNK_BYTES || offset.saturating_add(data.len() as u64) > MAX_FILE_BYTES {
        return Err(Failure::new(ExecErrorCode::TooLarge, format!("{path}: the attachment is too large")));
    }
    Ok(data)
}
