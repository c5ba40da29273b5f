//! The sandbox's Debian root file system, made once for a list of packages.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cadre_e2e::cache;
use sha2::{Digest as _, Sha256};

use crate::cluster::command::{command, output};
use crate::oci::layer::Layer;

/// Where programs are found in it.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SUITE: &str = "bookworm";
const PACKAGES: &str = "bash,coreutils,git,python3,jq,ripgrep,curl,ca-certificates,procps,file,unzip,patch";
/// Date of the files (2026-01-01), so that making the root again gives the same bytes from the same packages.
const EPOCH: &str = "1767225600";
/// What differs between two makings, or is of no use in a container.
const DROPPED: [&str; 8] = [
    "var/cache",
    "var/lib/apt/lists",
    "var/log",
    "etc/machine-id",
    "etc/resolv.conf",
    "etc/hostname",
    "usr/share/doc",
    "usr/share/man",
];

/// The root as a layer.
///
/// # Errors
/// When `mmdebstrap` is missing or fails.
pub fn layer() -> Result<Layer> {
    let mut layer = Layer::default();
    layer.tree(&folder()?)?;
    for path in DROPPED {
        layer.remove(path);
    }
    for path in ["dev", "proc", "sys", "run", "tmp"] {
        layer.remove(path);
        layer.directory(path, if path == "tmp" { 0o1777 } else { 0o755 });
    }
    layer.directory("var/cache", 0o755);
    layer.directory("var/log", 0o755);
    Ok(layer)
}

/// What the root is made from.
pub fn key() -> String {
    let key = format!("{:x}", Sha256::digest(format!("{SUITE} {PACKAGES} {EPOCH} {DROPPED:?}")));
    key.chars().take(16).collect()
}

/// The folder that holds the root; made if it isn't there.
fn folder() -> Result<PathBuf> {
    let folder = cache::root()?.join("sandbox-root").join(key());
    if folder.exists() {
        return Ok(folder);
    }
    let staged = folder.with_extension("partial");
    remove(&staged)?;
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    make(&staged)?;
    std::fs::rename(&staged, &folder)?;
    Ok(folder)
}

fn make(folder: &Path) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the sandbox image needs root to make a Debian root file system; a Containerfile is in images/"
    );
    let mut debstrap = command("mmdebstrap");
    debstrap.env("SOURCE_DATE_EPOCH", EPOCH).args(["--variant=essential", "--mode=root"]);
    debstrap.arg(format!("--include={PACKAGES}")).arg(SUITE).arg(folder);
    // The machine's own sources: a mirror that it reaches.
    for sources in ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"] {
        if Path::new(sources).exists() {
            debstrap.arg(sources);
        }
    }
    output(&mut debstrap).context("mmdebstrap failed (Debian package mmdebstrap; run apt-get update first)")?;
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
