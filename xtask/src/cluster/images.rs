//! Puts images into the nodes' containerds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};

use super::command::{command, output};
use super::layout::{Layout, NodeLayout};
use super::network::{NODES, Node};
use super::progress::Progress;
use crate::oci::{NamedDigest, read_names};

/// `ctr` of a node, in the namespace that kubelet uses.
pub fn ctr(paths: &NodeLayout) -> Command {
    let mut ctr = command("ctr");
    ctr.arg("--address").arg(paths.containerd_socket()).args(["--namespace", "k8s.io"]);
    ctr
}

/// Loads archives into every node that is on.
///
/// # Errors
/// When the cluster isn't up, or an archive can't be read.
pub fn load(layout: &Layout, archives: &[PathBuf]) -> Result<()> {
    let progress = Progress::start();
    let nodes: Vec<_> = NODES.into_iter().filter(|node| layout.node(*node).containerd_socket().exists()).collect();
    ensure!(!nodes.is_empty(), "the cluster isn't up: run `cargo xtask cluster up`");
    for archive in archives {
        let imported = on_each(&nodes, |node| import(layout, node, archive))?;
        let names: Vec<_> = read_names(archive)?.into_iter().map(|image| image.name).collect();
        let count = imported.into_iter().filter(|imported| *imported).count();
        let what = if count == 0 { "was there".to_owned() } else { format!("loaded into {count} nodes") };
        progress.say(&format!("{}: {what}", names.join(", ")));
    }
    Ok(())
}

/// Runs a step for several nodes at the same time.
fn on_each<T: Send>(nodes: &[Node], step: impl Fn(Node) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| step(*node))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread broke"))?).collect()
    })
}

/// Loads an archive into one node, unless all its images are there. Returns whether it was loaded.
///
/// # Errors
/// When containerd refuses it.
pub fn import(layout: &Layout, node: Node, archive: &Path) -> Result<bool> {
    let paths = layout.node(node);
    let wanted = read_names(archive)?;
    let listing = output(ctr(&paths).args(["images", "list"]))
        .with_context(|| format!("containerd of {} doesn't answer", node.name()))?;
    if holds_all(&listing, &wanted) {
        return Ok(false);
    }
    output(ctr(&paths).args(["images", "import"]).arg(archive))?;
    Ok(true)
}

/// Whether a listing (columns: name, media type, digest, …) has every image.
fn holds_all(listing: &str, wanted: &[NamedDigest]) -> bool {
    let held: Vec<_> = listing
        .lines()
        .filter_map(|line| {
            let mut columns = line.split_whitespace();
            Some((columns.next()?, columns.nth(1)?))
        })
        .collect();
    wanted.iter().all(|image| held.contains(&(image.name.as_str(), image.digest.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_there_only_with_the_same_digest() {
        let listing = "REF TYPE DIGEST SIZE PLATFORMS LABELS\n\
            localhost/a:1 application/vnd.oci.image.manifest.v1+json sha256:aa 1.0 KiB linux/amd64 -\n";
        let image = |name: &str, digest: &str| NamedDigest { name: name.into(), digest: digest.into() };
        assert!(holds_all(listing, &[image("localhost/a:1", "sha256:aa")]));
        assert!(!holds_all(listing, &[image("localhost/a:1", "sha256:bb")]));
        assert!(!holds_all(listing, &[image("localhost/a:1", "sha256:aa"), image("localhost/a:2", "sha256:aa")]));
    }
}
