//! Static programs, built in the release profile.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::contents::Image;
use crate::cluster::command::{command, output};

/// Built programs.
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Where a program is.
    pub fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }
}

/// Builds the programs of these images, and the CLI if asked to: what they share is compiled once.
///
/// # Errors
/// When cargo fails: its messages are on standard error.
pub fn programs(images: &[Image], cli: bool) -> Result<Programs> {
    let wanted = |program: &&str| images.iter().any(|image| image.program() == Some(program));
    let of_images = ["cadre-operator", "cadre-api", "cadre-agent"].into_iter().filter(wanted);
    named(of_images.chain(cli.then_some("kubectl-cadre")))
}

/// Builds programs of the workspace in the same way.
///
/// # Errors
/// As [`programs`].
pub fn named<'a>(programs: impl IntoIterator<Item = &'a str>) -> Result<Programs> {
    let target = host()?;
    let root = workspace();
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let built = Programs { folder: folder.join(&target).join("release") };
    let programs: Vec<_> = programs.into_iter().collect();
    if programs.is_empty() {
        return Ok(built);
    }
    let mut cargo = command("cargo");
    cargo.current_dir(&root).args(["build", "--release", "--locked", "--target", &target]);
    for program in programs {
        cargo.args(["--bin", program]);
    }
    cargo.env("RUSTFLAGS", flags()).env("CARGO_INCREMENTAL", "0");
    ensure!(cargo.status().context("can't start cargo")?.success(), "cargo could not build the programs");
    Ok(built)
}

/// Static linking, and no path of this machine in the programs: the same source gives the same bytes anywhere. The
/// workspace's own paths are relative already. Nothing here depends on where the checkout is, or a fresh one would compile
/// everything again.
fn flags() -> String {
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .unwrap_or_default();
    format!("-C target-feature=+crt-static --remap-path-prefix={home}=/cargo")
}

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap_or_else(|_| PathBuf::from("."))
}

fn host() -> Result<String> {
    let text = output(command("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not say its host")?;
    Ok(host.to_owned())
}
