//! Cadre's images, made without a container engine and without a registry.
//!
//! `build` compiles static programs, `root` makes the sandbox's Debian root file system, `contents` says what is in an
//! image. Every image has two names: its version, and a tag made from its content, so that a changed image is a
//! changed name.

mod build;
mod contents;
mod root;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cadre_e2e::cache;

use crate::cluster::progress::Progress;
use crate::oci::{ImageConfig, layer::Layer, write_archive};

/// Name before `/{image}:{tag}`.
const REPOSITORY: &str = "localhost/cadre";

#[derive(clap::Args)]
pub struct Arguments {
    /// Folder of the archives [default: images/ in the cache]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only these images: operator, api-server, agent, sandbox
    #[arg(long = "only", value_name = "IMAGE")]
    only: Vec<String>,
    /// Name before the images' own
    #[arg(long, default_value = REPOSITORY)]
    repository: String,
}

/// A finished archive.
struct Finished {
    name: String,
    bytes: u64,
}

/// Makes the images, and prints their names and sizes.
///
/// # Errors
/// When a build fails or a tool is missing: with its message.
pub fn run(arguments: &Arguments) -> Result<()> {
    let progress = Progress::start();
    let wanted = wanted(&arguments.only)?;
    let out = arguments.out.clone().map_or_else(default_folder, Ok)?;
    std::fs::create_dir_all(&out).with_context(|| format!("can't make {}", out.display()))?;
    progress.say("building static programs (release)");
    let programs = build::programs(&wanted)?;
    let mut finished = Vec::new();
    for image in wanted {
        if image == contents::Image::Sandbox {
            progress.say("making the sandbox's root file system");
        }
        let (config, layers) = image.contents(&programs)?;
        finished.push(write(&out, image, &arguments.repository, &config, &layers)?);
        progress.say(&format!("{} is written", image.name()));
    }
    for image in &finished {
        progress.say(&format!("{:<48} {:>6.1} MB", image.name, image.bytes as f64 / 1e6));
    }
    Ok(())
}

/// Where archives go when nothing else is said.
///
/// # Errors
/// When there is no place for the cache.
pub fn default_folder() -> Result<PathBuf> {
    Ok(cache::root()?.join("images"))
}

fn wanted(only: &[String]) -> Result<Vec<contents::Image>> {
    let all = contents::Image::ALL;
    if let Some(unknown) = only.iter().find(|name| all.iter().all(|image| image.name() != *name)) {
        bail!("there is no image {unknown:?}: choose from operator, api-server, agent, sandbox");
    }
    Ok(all.into_iter().filter(|image| only.is_empty() || only.iter().any(|name| name == image.name())).collect())
}

/// Writes an archive under both names. The names are in the archive's index only, so the digest does not depend on them.
fn write(
    out: &Path,
    image: contents::Image,
    repository: &str,
    config: &ImageConfig,
    layers: &[Layer],
) -> Result<Finished> {
    let path = out.join(format!("{}.tar", image.name()));
    let version = format!("{repository}/{}:{}", image.name(), env!("CARGO_PKG_VERSION"));
    let staged = out.join(format!("{}.unnamed.tar", image.name()));
    let digest = write_archive(&staged, std::slice::from_ref(&version), config, layers)?;
    let tag: String = digest.trim_start_matches("sha256:").chars().take(16).collect();
    let name = format!("{repository}/{}:{tag}", image.name());
    write_archive(&path, &[version, name.clone()], config, layers)?;
    std::fs::remove_file(&staged)?;
    std::fs::write(out.join(format!("{}.name", image.name())), &name)?;
    Ok(Finished { name, bytes: std::fs::metadata(&path)?.len() })
}
