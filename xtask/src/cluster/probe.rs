//! The image with which tests look at the cluster from inside of a pod.

use std::path::PathBuf;

use anyhow::{Context, Result};
use cadre_e2e::PROBE_IMAGE;
use cadre_e2e::binaries;

use crate::oci::layer::Layer;
use crate::oci::{ImageConfig, write_archive};

/// Makes the image, if it isn't there, and returns the archive.
///
/// # Errors
/// When its program isn't built.
pub fn archive() -> Result<PathBuf> {
    let program = binaries::program("probe")?;
    let archive = program.parent().context("no folder")?.join("probe.tar");
    if !archive.exists() {
        let mut layer = Layer::default();
        layer.copy("probe", 0o755, &program);
        let config = ImageConfig {
            entrypoint: vec!["/probe".into()],
            cmd: vec!["serve".into()],
            user: Some("65532:65532".into()),
            ..ImageConfig::default()
        };
        write_archive(&archive, &[PROBE_IMAGE.to_owned()], &config, &[layer])?;
    }
    Ok(archive)
}
