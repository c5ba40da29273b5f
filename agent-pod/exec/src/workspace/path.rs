//! Paths as the model writes them, parsed once.

use std::fmt;
use std::path::PathBuf;

use cadre_protocol::exec::ExecErrorCode;

use super::{Failure, PRIVATE, TEMPORARY};

/// Longest path, in bytes (`PATH_MAX`).
const MAX_BYTES: usize = 4096;

/// A path below the workspace: no root, no `..`, nothing of ours. Empty for the workspace itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RelPath {
    parts: Vec<String>,
}

impl RelPath {
    pub(super) fn root() -> Self {
        Self { parts: Vec::new() }
    }

    /// A path inside our own folder, which [`Self::parse`] refuses.
    pub(super) fn private(name: &str) -> Self {
        Self { parts: vec![PRIVATE.to_owned(), name.to_owned()] }
    }

    /// Reads a path. `.` and repeated slashes are dropped.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let refuse = |why: &str| {
            let shown: String = text.chars().take(200).collect();
            Err(Failure::new(ExecErrorCode::InvalidPath, format!("{shown:?}: {why}")))
        };
        if text.len() > MAX_BYTES {
            return refuse("the path is too long");
        }
        if text.starts_with('/') {
            return refuse("give a path relative to the workspace");
        }
        if text.contains('\0') {
            return refuse("a path has no NUL");
        }
        let parts: Vec<String> =
            text.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect();
        if parts.iter().any(|part| part == "..") {
            return refuse("the path may not contain `..`");
        }
        if parts.iter().any(|part| is_ours(part)) {
            return refuse("this name is reserved");
        }
        Ok(Self { parts })
    }

    /// Reads the path of a file: not the workspace itself.
    pub(super) fn parse_file(text: &str) -> Result<Self, Failure> {
        let path = Self::parse(text)?;
        if path.parts.is_empty() {
            return Err(Failure::new(ExecErrorCode::WrongKind, "the path names the workspace folder, not a file"));
        }
        Ok(path)
    }

    pub(super) fn parts(&self) -> &[String] {
        &self.parts
    }

    /// The folder that holds it, and its name; `None` for the workspace itself.
    pub(super) fn split(&self) -> Option<(Self, &str)> {
        let (name, folder) = self.parts.split_last()?;
        Some((Self { parts: folder.to_vec() }, name))
    }

    /// For the kernel: `.` for the workspace itself.
    pub(crate) fn to_path(&self) -> PathBuf {
        if self.parts.is_empty() { PathBuf::from(".") } else { self.parts.iter().collect() }
    }

    /// The path of an entry of this folder.
    pub(super) fn entry(&self, name: &str) -> String {
        if self.parts.is_empty() { name.to_owned() } else { format!("{}/{name}", self.parts.join("/")) }
    }
}

/// Whether an entry with this name belongs to exec-server and is hidden.
pub(super) fn is_ours(name: &str) -> bool {
    name == PRIVATE || name.starts_with(TEMPORARY)
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() { f.write_str(".") } else { f.write_str(&self.parts.join("/")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_leaves_the_workspace_is_refused() {
        for bad in
            ["/etc/passwd", "..", "a/../b", "a/..", "./../x", "a\0b", ".cadre", ".cadre/workspace-id", "a/.cadre"]
        {
            assert_eq!(RelPath::parse(bad).unwrap_err().code, ExecErrorCode::InvalidPath, "{bad}");
        }
        for (good, shown) in [("", "."), (".", "."), ("a//b/./c", "a/b/c"), ("..a", "..a"), ("a/", "a")] {
            assert_eq!(RelPath::parse(good).unwrap().to_string(), shown);
        }
        assert!(RelPath::parse_file("./").is_err());
    }

    proptest! {
        #[test]
        fn parsed_paths_have_plain_parts_only(text in ".{0,60}") {
            if let Ok(path) = RelPath::parse(&text) {
                prop_assert!(path.to_path().is_relative());
                prop_assert!(path.parts().iter().all(|part| part != ".." && !part.contains('/')));
            }
        }
    }
}
