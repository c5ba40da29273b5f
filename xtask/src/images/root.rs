//! Debian root file systems of images, made once for a list of packages.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cadre_e2e::cache;
use sha2::{Digest as _, Sha256};

use crate::cluster::command::{command, output};
use crate::oci::layer::Layer;

/// Where programs are found in it.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SUITE: &str = "bookworm";
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

/// A root file system.
pub struct Root {
    /// Its name in the cache and in messages.
    pub name: &'static str,
    /// Debian packages, separated by commas.
    packages: &'static str,
    /// Shell command before these packages are installed; `$1` is the folder.
    prepare: Option<&'static str>,
    /// What its image doesn't need besides what none needs.
    dropped: &'static [&'static str],
}

/// The sandbox's: common tools.
pub const SANDBOX: Root = Root {
    name: "sandbox",
    packages: "bash,coreutils,git,python3,jq,ripgrep,curl,ca-certificates,procps,file,unzip,patch",
    prepare: None,
    dropped: &[],
};

/// PostgreSQL's: its server, without the compiler for queries, Debian's scripts around it and translations, which are half of
/// the size. Its certificate is made by chance, and nobody asks for it.
pub const POSTGRESQL: Root = Root {
    name: "postgresql",
    packages: "postgresql-15",
    prepare: Some(
        "echo postgres:x:65532: >> $1/etc/group; \
         echo postgres:x:65532:65532:PostgreSQL:/var/lib/postgresql:/bin/sh >> $1/etc/passwd; \
         mkdir -p $1/etc/postgresql-common/createcluster.d; \
         echo create_main_cluster = false > $1/etc/postgresql-common/createcluster.d/cadre.conf",
    ),
    dropped: &[
        "usr/lib/llvm-14",
        "usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
        "usr/lib/aarch64-linux-gnu/libLLVM-14.so.1",
        "usr/lib/postgresql/15/lib/llvmjit.so",
        "usr/lib/postgresql/15/lib/bitcode",
        "etc/ssl",
        "usr/share/i18n",
        "usr/share/locale",
        "usr/share/perl",
        "usr/share/perl5",
    ],
};

impl Root {
    /// The root as a layer.
    ///
    /// # Errors
    /// When `mmdebstrap` is missing or fails.
    pub fn layer(&self) -> Result<Layer> {
        let mut layer = Layer::default();
        layer.tree(&self.folder()?)?;
        for path in DROPPED.iter().chain(self.dropped) {
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
    pub fn key(&self) -> String {
        let Self { name: _, packages, prepare, dropped } = self;
        let own = prepare.map(|prepare| format!(" {prepare} {dropped:?}")).unwrap_or_default();
        let key = format!("{:x}", Sha256::digest(format!("{SUITE} {packages} {EPOCH} {DROPPED:?}{own}")));
        key.chars().take(16).collect()
    }

    /// The folder that holds the root; made if it isn't there.
    pub fn folder(&self) -> Result<PathBuf> {
        let folder = cache::root()?.join(format!("{}-root", self.name)).join(self.key());
        if folder.exists() {
            return Ok(folder);
        }
        let staged = folder.with_extension("partial");
        remove(&staged)?;
        if let Some(parent) = folder.parent() {
            std::fs::create_dir_all(parent)?;
        }
        self.make(&staged)?;
        std::fs::rename(&staged, &folder)?;
        Ok(folder)
    }

    fn make(&self, folder: &Path) -> Result<()> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "the image {} needs root to make a Debian root file system; a Containerfile is in images/",
            self.name
        );
        let mut debstrap = command("mmdebstrap");
        debstrap.env("SOURCE_DATE_EPOCH", EPOCH).args(["--variant=essential", "--mode=root"]);
        debstrap.args(self.prepare.map(|prepare| format!("--essential-hook={prepare}")));
        debstrap.arg(format!("--include={}", self.packages)).arg(SUITE).arg(folder);
        // The machine's own sources: a mirror that it reaches.
        for sources in ["/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"] {
            if Path::new(sources).exists() {
                debstrap.arg(sources);
            }
        }
        output(&mut debstrap).context("mmdebstrap failed (Debian package mmdebstrap; run apt-get update first)")?;
        Ok(())
    }
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
