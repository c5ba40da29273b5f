//! Mounts below the cluster's folder: containers' roots and volumes that their programs left behind.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};

/// How often mounts may appear again while they are removed.
const ROUNDS: usize = 5;

/// Unmounts all that is mounted at `folder` or below it.
///
/// # Errors
/// When a mount stays.
pub fn unmount_below(folder: &Path) -> Result<()> {
    for _ in 0..ROUNDS {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let found = below(&mounts, folder);
        if found.is_empty() {
            return Ok(());
        }
        for path in found.iter().rev() {
            // A mount on a mount takes two; one that is gone already is none of our business.
            let _ = umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
        }
    }
    let left = below(&fs::read_to_string("/proc/self/mountinfo")?, folder);
    match left.first() {
        None => Ok(()),
        Some(path) => bail!("can't unmount {}", path.display()),
    }
}

/// Removes a folder, but never what is mounted in it.
///
/// # Errors
/// When something in it can't be unmounted or removed.
pub fn remove_folder(folder: &Path) -> Result<()> {
    unmount_below(folder)?;
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The mount points at a folder or below it, in the order in which they were mounted.
fn below(mountinfo: &str, folder: &Path) -> Vec<PathBuf> {
    let paths = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(|path| PathBuf::from(unescape(path)));
    paths.filter(|path| path.starts_with(folder)).collect()
}

/// The kernel writes spaces and the like as three octal digits.
fn unescape(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (code, character)| path.replace(code, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_folder_are_ours() {
        let mountinfo = "20 1 8:1 / / rw - ext4 /dev/a rw\n\
            31 20 0:5 / /c/cluster/node-1/a\\040b rw - tmpfs tmpfs rw\n\
            32 20 0:6 / /c/cluster-bin rw - tmpfs tmpfs rw\n\
            33 31 0:7 net:[1] /c/cluster/node-1/netns rw - nsfs nsfs rw\n";
        assert_eq!(
            below(mountinfo, Path::new("/c/cluster")),
            ["/c/cluster/node-1/a b", "/c/cluster/node-1/netns"].map(PathBuf::from)
        );
    }
}
