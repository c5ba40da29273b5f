//! Cadre's images, made without a container engine and without a registry.
//!
//! `build` compiles static programs, `root` makes the Debian root file systems, `contents` says what is in an
//! image. Every image has two names: its version, and a tag made from its content, so that a changed image is a
//! changed name.

pub mod build;
mod contents;
mod root;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cadre_e2e::cache;

use crate::cluster::progress::Progress;
use crate::oci::write_archive;

/// Name before `/{image}:{tag}`.
const REPOSITORY: &str = "localhost/cadre";

#[derive(clap::Args)]
pub struct Arguments {
    /// Folder of the archives [default: images/ in the cache]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only these images: operator, api-server, agent, sandbox; or postgresql, which is made only when it is named
    #[arg(long = "only", value_name = "IMAGE")]
    only: Vec<String>,
    /// Name before the images' own
    #[arg(long, default_value = REPOSITORY)]
    repository: String,
}

/// A finished archive.
struct Finished {
    image: contents::Image,
    archive: PathBuf,
    name: String,
    bytes: u64,
}

/// All that an installation needs.
pub struct Made {
    /// Archives of the images.
    pub archives: Vec<PathBuf>,
    /// Name of each image, by its key in the chart's values.
    pub names: Vec<(&'static str, String)>,
    /// The CLI's program.
    pub cli: PathBuf,
}

/// Makes the images, and prints their names and sizes.
///
/// # Errors
/// When a build fails or a tool is missing: with its message.
pub fn run(arguments: &Arguments) -> Result<()> {
    let wanted = wanted(&arguments.only)?;
    let out = arguments.out.clone().map_or_else(default_folder, Ok)?;
    let programs = build::programs(&wanted, false)?;
    archives(&programs, &wanted, &out, &arguments.repository)?;
    Ok(())
}

/// Makes the images of an installation and the CLI, in one build. PostgreSQL's is made for `postgres` only.
///
/// # Errors
/// As [`run`].
pub fn make(postgres: bool) -> Result<Made> {
    let mut wanted = contents::Image::NEEDED.to_vec();
    wanted.extend(postgres.then_some(contents::Image::Postgresql));
    let roots: Vec<_> = wanted.iter().filter_map(|image| image.root()).collect();
    let programs = std::thread::scope(|scope| {
        // A Debian root is downloaded more than it is computed: it is made while programs are compiled.
        let roots = scope.spawn(move || roots.into_iter().try_for_each(|root| root.folder().map(drop)));
        let programs = build::programs(&wanted, true)?;
        roots.join().map_err(|_| anyhow::anyhow!("the making of a Debian root ended in disorder"))??;
        anyhow::Ok(programs)
    })?;
    let finished = archives(&programs, &wanted, &default_folder()?, REPOSITORY)?;
    Ok(Made {
        archives: finished.iter().map(|image| image.archive.clone()).collect(),
        names: finished.iter().map(|image| (image.image.chart_key(), image.name.clone())).collect(),
        cli: programs.path("kubectl-cadre"),
    })
}

fn archives(
    programs: &build::Programs,
    wanted: &[contents::Image],
    out: &Path,
    repository: &str,
) -> Result<Vec<Finished>> {
    let progress = Progress::start();
    std::fs::create_dir_all(out).with_context(|| format!("can't make {}", out.display()))?;
    let mut finished = Vec::new();
    for image in wanted {
        let image = finish(&progress, *image, programs, out, repository)?;
        progress.say(&format!("{:<48} {:>6.1} MB", image.name, image.bytes as f64 / 1e6));
        finished.push(image);
    }
    Ok(finished)
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
        bail!("there is no image {unknown:?}: choose from operator, api-server, agent, sandbox, postgresql");
    }
    if only.is_empty() {
        return Ok(contents::Image::NEEDED.into());
    }
    Ok(all.into_iter().filter(|image| only.iter().any(|name| name == image.name())).collect())
}

/// Writes an archive, unless there is one that was made from the same.
fn finish(
    progress: &Progress,
    image: contents::Image,
    programs: &build::Programs,
    out: &Path,
    repository: &str,
) -> Result<Finished> {
    let archive = out.join(format!("{}.tar", image.name()));
    let record = out.join(format!("{}.made-from", image.name()));
    let key = format!("{repository} {}", image.key(programs)?);
    let recorded = std::fs::read_to_string(&record).unwrap_or_default();
    let name = match recorded.split_once('\n') {
        Some((old, name)) if old == key && archive.exists() => name.trim().to_owned(),
        _ => {
            if let Some(root) = image.root() {
                progress.say(&format!("the root file system of {}", root.name));
            }
            let name = write(&archive, image, programs, repository)?;
            std::fs::write(&record, format!("{key}\n{name}\n"))?;
            name
        }
    };
    let bytes = std::fs::metadata(&archive)?.len();
    Ok(Finished { image, archive, name, bytes })
}

/// Writes an archive under both names, and returns the one made from its content. The names are in the archive's index
/// only, so the digest does not depend on them.
fn write(archive: &Path, image: contents::Image, programs: &build::Programs, repository: &str) -> Result<String> {
    let (config, layers) = image.contents(programs)?;
    let version = format!("{repository}/{}:{}", image.name(), env!("CARGO_PKG_VERSION"));
    let digest = write_archive(archive, std::slice::from_ref(&version), &config, &layers)?;
    let tag: String = digest.trim_start_matches("sha256:").chars().take(16).collect();
    let name = format!("{repository}/{}:{tag}", image.name());
    write_archive(archive, &[version, name.clone()], &config, &layers)?;
    Ok(name)
}
