//! One file-system layer: entries in the order of their paths, without times, with the owners that the caller sets.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The user and group that own an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u64,
    /// Group id.
    pub gid: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Directory,
    Bytes(Vec<u8>),
    /// A file of this machine, read when the layer is written.
    Copied(PathBuf),
    Symlink(PathBuf),
}

#[derive(Clone, Debug)]
struct Entry {
    mode: u32,
    owner: Owner,
    kind: Kind,
}

/// The files of a layer. Paths are relative to the image's root, without a leading slash.
///
/// Parent directories that nobody added are created with mode 0755, owned by root.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    entries: BTreeMap<PathBuf, Entry>,
}

impl Layer {
    /// Adds a directory, or sets the mode of one.
    pub fn directory(&mut self, path: impl AsRef<Path>, mode: u32) {
        self.insert(path.as_ref(), mode, Kind::Directory);
    }

    /// Adds a file with the given content.
    pub fn file(&mut self, path: impl AsRef<Path>, mode: u32, content: Vec<u8>) {
        self.insert(path.as_ref(), mode, Kind::Bytes(content));
    }

    /// Adds a copy of a file of this machine.
    pub fn copy(&mut self, path: impl AsRef<Path>, mode: u32, source: &Path) {
        self.insert(path.as_ref(), mode, Kind::Copied(source.to_owned()));
    }

    /// Sets the owner of an entry that was added before; without effect on others.
    pub fn owner(&mut self, path: impl AsRef<Path>, owner: Owner) {
        if let Some(entry) = self.entries.get_mut(path.as_ref()) {
            entry.owner = owner;
        }
    }

    /// Adds all that is below `root` with its owners, except devices, sockets and pipes, which no image needs.
    ///
    /// # Errors
    /// When a folder can't be read.
    pub fn tree(&mut self, root: &Path) -> Result<()> {
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for child in fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))? {
                let source = child?.path();
                let metadata = fs::symlink_metadata(&source)?;
                if metadata.is_dir() {
                    folders.push(source.clone());
                }
                let Some(kind) = kind_of(&source, &metadata)? else { continue };
                let owner = Owner { uid: metadata.uid().into(), gid: metadata.gid().into() };
                let path = source.strip_prefix(root)?.to_owned();
                self.entries.insert(path, Entry { mode: metadata.permissions().mode() & 0o7777, owner, kind });
            }
        }
        Ok(())
    }

    /// Drops the entry at `path` and all below it.
    pub fn remove(&mut self, path: impl AsRef<Path>) {
        self.entries.retain(|entry, _| !entry.starts_with(path.as_ref()));
    }

    /// Writes the layer as a tar file.
    ///
    /// # Errors
    /// When a copied file can't be read or `out` can't be written.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let mut tar = tar::Builder::new(out);
        for (path, entry) in &self.with_parents() {
            append(&mut tar, path, entry).with_context(|| format!("can't pack {}", path.display()))?;
        }
        tar.finish()?;
        Ok(())
    }

    fn insert(&mut self, path: &Path, mode: u32, kind: Kind) {
        self.entries.insert(path.to_owned(), Entry { mode, owner: Owner::default(), kind });
    }

    fn with_parents(&self) -> BTreeMap<PathBuf, Entry> {
        let mut entries = self.entries.clone();
        for path in self.entries.keys() {
            for parent in path.ancestors().skip(1).filter(|parent| *parent != Path::new("")) {
                let folder = Entry { mode: 0o755, owner: Owner::default(), kind: Kind::Directory };
                entries.entry(parent.to_owned()).or_insert(folder);
            }
        }
        entries
    }
}

fn kind_of(source: &Path, metadata: &Metadata) -> Result<Option<Kind>> {
    let file_type = metadata.file_type();
    Ok(if file_type.is_dir() {
        Some(Kind::Directory)
    } else if file_type.is_file() {
        Some(Kind::Copied(source.to_owned()))
    } else if file_type.is_symlink() {
        Some(Kind::Symlink(fs::read_link(source)?))
    } else {
        None
    })
}

fn append(tar: &mut tar::Builder<&mut dyn Write>, path: &Path, entry: &Entry) -> Result<()> {
    let mut header = plain_header(0, entry.mode);
    header.set_uid(entry.owner.uid);
    header.set_gid(entry.owner.gid);
    match &entry.kind {
        Kind::Directory => {
            header.set_entry_type(tar::EntryType::Directory);
            tar.append_data(&mut header, path, std::io::empty())?;
        }
        Kind::Symlink(target) => {
            header.set_entry_type(tar::EntryType::Symlink);
            tar.append_link(&mut header, path, target)?;
        }
        Kind::Bytes(bytes) => {
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, path, bytes.as_slice())?;
        }
        Kind::Copied(source) => {
            let file = File::open(source).with_context(|| format!("can't open {}", source.display()))?;
            header.set_size(file.metadata()?.len());
            tar.append_data(&mut header, path, file)?;
        }
    }
    Ok(())
}

/// A tar header of a file of root, without a time.
pub(super) fn plain_header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(layer: &Layer) -> Vec<u8> {
        let mut bytes = Vec::new();
        layer.write(&mut bytes).unwrap();
        bytes
    }

    fn listing(bytes: &[u8]) -> Vec<(String, u32, u64, u64)> {
        let mut tar = tar::Archive::new(bytes);
        let line = |entry: std::io::Result<tar::Entry<&[u8]>>| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!(header.mtime().unwrap(), 0);
            let path = entry.path().unwrap().display().to_string();
            (path, header.mode().unwrap(), header.uid().unwrap(), header.gid().unwrap())
        };
        tar.entries().unwrap().map(line).collect()
    }

    #[test]
    fn entries_are_sorted_and_parents_come_first() {
        let mut layer = Layer::default();
        layer.file("usr/bin/b", 0o755, vec![1]);
        layer.file("etc/passwd", 0o644, vec![2]);
        layer.directory("tmp", 0o1777);
        layer.owner("etc/passwd", Owner { uid: 1000, gid: 42 });
        let expected = [
            ("etc", 0o755, 0, 0),
            ("etc/passwd", 0o644, 1000, 42),
            ("tmp", 0o1777, 0, 0),
            ("usr", 0o755, 0, 0),
            ("usr/bin", 0o755, 0, 0),
            ("usr/bin/b", 0o755, 0, 0),
        ];
        let expected: Vec<_> = expected.map(|(path, mode, uid, gid)| (path.to_owned(), mode, uid, gid)).into();
        assert_eq!(listing(&written(&layer)), expected);
    }

    #[test]
    fn a_copied_tree_does_not_depend_on_times() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::write(folder.path().join("d/f"), "text").unwrap();
        std::os::unix::fs::symlink("f", folder.path().join("d/link")).unwrap();
        let pack = || {
            let mut layer = Layer::default();
            layer.tree(folder.path()).unwrap();
            written(&layer)
        };
        let before = pack();
        fs::write(folder.path().join("d/f"), "text").unwrap();
        assert_eq!(before, pack());
        let own = fs::metadata(folder.path()).unwrap();
        let owners: Vec<_> = listing(&before).into_iter().map(|(path, _, uid, gid)| (path, uid, gid)).collect();
        assert_eq!(owners, ["d", "d/f", "d/link"].map(|path| (path.to_owned(), own.uid().into(), own.gid().into())));
    }

    #[test]
    fn long_paths_survive() {
        let path = format!("{}/file", "folder".repeat(30));
        let mut layer = Layer::default();
        layer.file(&path, 0o644, vec![]);
        assert_eq!(listing(&written(&layer)).last().unwrap().0, path);
    }

    #[test]
    fn removing_a_folder_takes_what_is_below() {
        let mut layer = Layer::default();
        layer.file("var/cache/a", 0o644, vec![]);
        layer.file("var/cached", 0o644, vec![]);
        layer.remove("var/cache");
        let paths: Vec<_> = listing(&written(&layer)).into_iter().map(|entry| entry.0).collect();
        assert_eq!(paths, ["var", "var/cached"]);
    }
}
