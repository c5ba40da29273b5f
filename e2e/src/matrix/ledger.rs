//! The ledgers, read from the volumes' folders on this machine: what really happened, whatever Cadre says.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::check::Lines;
use super::{release::Release, work};
use crate::story::Story;

/// Folders of the workspaces of a release.
///
/// # Errors
/// When Kubernetes doesn't answer.
pub fn folders(story: &Story, release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let list = story.kubernetes.get("/api/v1/persistentvolumes")?;
    let volumes = list["items"].as_array().into_iter().flatten();
    let ours = volumes.filter(|volume| volume["spec"]["claimRef"]["namespace"] == release.work());
    Ok(ours.filter_map(|volume| volume["spec"]["local"]["path"].as_str()).map(PathBuf::from).collect())
}

/// How often each line is in a round's ledgers. A folder without a ledger has no lines.
#[must_use]
pub fn lines(folders: &[PathBuf], round: usize) -> Lines {
    let mut lines = Lines::new();
    for folder in folders {
        let text = fs::read_to_string(folder.join(work::ledger(round))).unwrap_or_default();
        for line in text.lines() {
            *lines.entry(line.to_owned()).or_default() += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_folders_are_counted() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["a", "b", "c"].map(|name| root.path().join(name));
        for (folder, text) in folders.iter().zip(["r1-0-1\nr1-0-2\n", "r1-0-1\n"]) {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("ledger-1"), text).unwrap();
        }
        assert_eq!(lines(&folders, 1), Lines::from([("r1-0-1".into(), 2), ("r1-0-2".into(), 1)]));
        assert_eq!(lines(&folders, 2), Lines::new());
    }
}
