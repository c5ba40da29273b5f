//! Puts the running program into a shared folder, for containers whose image lacks it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Copies the running program to `target` with mode 0755. Whoever looks at `target` sees nothing or the whole program,
/// even when two installations run at once. Missing folders are created.
///
/// # Errors
/// When the folder cannot be written, or `target` has no file name.
pub fn install(target: &Path) -> io::Result<()> {
    let folder = target.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    if !folder.as_os_str().is_empty() {
        fs::create_dir_all(folder)?;
    }
    let temporary = folder.join(format!(".{}.{}", name.to_string_lossy(), uuid::Uuid::new_v4()));
    let placed = write_program(&temporary).and_then(|()| fs::rename(&temporary, target));
    if placed.is_err() {
        // The first error is the one to tell; a leftover is hidden and harmless.
        let _ = fs::remove_file(&temporary);
    }
    placed
}

fn write_program(temporary: &PathBuf) -> io::Result<()> {
    let mut program = File::open("/proc/self/exe")?;
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o755).open(temporary)?;
    io::copy(&mut program, &mut copy)?;
    // The umask may have taken bits from the mode given at creation.
    copy.set_permissions(fs::Permissions::from_mode(0o755))?;
    copy.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_whole_and_executable_and_alone() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("bin/cadre-agent");
        install(&target).unwrap();
        install(&target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), fs::read("/proc/self/exe").unwrap());
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);
    }
}
