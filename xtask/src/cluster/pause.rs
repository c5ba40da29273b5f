//! The image of the process that holds a pod's namespaces.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use cadre_e2e::cache;
use sha2::{Digest, Sha256};

use super::command::{command, output};
use crate::oci::layer::Layer;
use crate::oci::{ImageConfig, write_archive};

/// The name by which containerd finds it.
pub const IMAGE: &str = "localhost/cadre/pause:1";

const SOURCE: &str = include_str!("../../../e2e/cluster/pause.c");

/// Makes the image, if it isn't there, and returns the archive.
///
/// # Errors
/// When there is no C compiler.
pub fn archive() -> Result<PathBuf> {
    let hash = format!("{:x}", Sha256::digest(SOURCE));
    let folder = cache::root()?.join("cluster-bin").join(format!("pause-{}", &hash[..16]));
    let archive = folder.join("pause.tar");
    if archive.exists() {
        return Ok(archive);
    }
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let (source, program) = (folder.join("pause.c"), folder.join("pause"));
    fs::write(&source, SOURCE)?;
    output(command("cc").args(["-static", "-Os", "-s", "-Wall", "-o"]).arg(&program).arg(&source))?;
    let mut layer = Layer::default();
    layer.copy("pause", 0o755, &program);
    let config =
        ImageConfig { entrypoint: vec!["/pause".into()], user: Some("65535:65535".into()), ..ImageConfig::default() };
    write_archive(&archive, &[IMAGE.to_owned()], &config, &[layer])?;
    Ok(archive)
}
