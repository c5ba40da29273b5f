//! Builds the cluster's Go programs, once for each version of their sources.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cadre_e2e::binaries::{MODULES, Module};
use cadre_e2e::{cache, wait};

use super::process;
use super::progress::Progress;

/// The oldest Go that the modules accept.
const GO: &str = "1.26";
/// One build must end within this.
const LIMIT: Duration = Duration::from_secs(60 * 60);
const REPORT: Duration = Duration::from_secs(20);

/// Builds what isn't built, one module after the other: two at once are not faster on a small machine.
///
/// # Errors
/// When Go is missing, or a build fails: the message names its log.
pub fn build_all(keep_cache: bool) -> Result<()> {
    build_those(&mut MODULES.iter(), keep_cache)
}

/// Builds a program if it isn't there.
///
/// # Errors
/// As [`build_all`].
pub fn build_program(name: &str, keep_cache: bool) -> Result<()> {
    build_those(&mut MODULES.iter().filter(|module| module.names().contains(&name)), keep_cache)
}

fn build_those(modules: &mut dyn Iterator<Item = &Module>, keep_cache: bool) -> Result<()> {
    let progress = Progress::start();
    let mut missing = Vec::new();
    for module in modules {
        if !module.folder()?.exists() {
            missing.push(module);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let version = super::command::run("go version")
        .with_context(|| format!("the cluster's programs are built with Go {GO} or newer: install it"))?;
    progress.say(&format!("{}: building {} programs, once", version.trim(), missing.len()));
    let caches = Caches::choose()?;
    for (number, module) in missing.iter().enumerate() {
        progress.say(&format!("building {} ({} of {})", module.name, number + 1, missing.len()));
        build(module, &caches, &progress)?;
    }
    if !keep_cache {
        caches.remove(&progress)?;
    }
    progress.say("all programs are built");
    Ok(())
}

/// Go's caches: gigabytes that are of no use once the programs are built, so they are ours and not the user's.
struct Caches {
    build: PathBuf,
    modules: Option<PathBuf>,
}

impl Caches {
    fn choose() -> Result<Self> {
        let root = cache::root()?;
        let own = std::env::var_os("GOMODCACHE").is_some();
        Ok(Self { build: root.join("go-build"), modules: (!own).then(|| root.join("go-modules")) })
    }

    fn set(&self, go: &mut Command) {
        go.env("GOCACHE", &self.build);
        if let Some(modules) = &self.modules {
            go.env("GOMODCACHE", modules);
        }
    }

    /// Removes them in the background, by a program that outlives this one: nobody needs to wait for half a million files.
    fn remove(&self, progress: &Progress) -> Result<()> {
        progress.say("removing Go's caches in the background (CADRE_KEEP_GO_CACHE=1 keeps them)");
        let mut rm = super::command::command("rm");
        rm.args(["-rf", "--one-file-system", "--"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        for folder in std::iter::once(&self.build).chain(&self.modules).filter(|folder| folder.exists()) {
            let gone = folder.with_extension(format!("gone-{}", std::process::id()));
            fs::rename(folder, &gone).with_context(|| format!("can't move {}", folder.display()))?;
            rm.arg(gone);
        }
        rm.spawn().context("can't start rm")?;
        Ok(())
    }
}

fn build(module: &Module, caches: &Caches, progress: &Progress) -> Result<()> {
    let target = module.folder()?;
    let staged = target.with_extension("partial");
    let _ = fs::remove_dir_all(&staged);
    fs::create_dir_all(&staged).with_context(|| format!("can't make {}", staged.display()))?;
    let log = target.with_extension("log");
    let mut child = go_build(module, caches, &staged, &log)?.spawn().context("can't start go")?;
    let mut reported = Instant::now();
    let hint = format!("read {}", log.display());
    let mut status = None;
    wait::until(&format!("the build of {}", module.name), LIMIT, &hint, || {
        if reported.elapsed() > REPORT {
            reported = Instant::now();
            progress.say(&format!("still building {}", module.name));
        }
        status = child.try_wait()?;
        Ok(status.is_some())
    })
    .inspect_err(|_| drop(child.kill()))?;
    if !status.is_some_and(|status| status.success()) {
        bail!("the build of {} failed: {hint}", module.name);
    }
    for program in module.programs {
        symlink(module.name, staged.join(program))?;
    }
    remove_older(module, &target)?;
    // The folder appears when it is complete, so that an interrupted build leaves none.
    fs::rename(&staged, &target).with_context(|| format!("can't make {}", target.display()))?;
    let _ = fs::remove_file(log);
    Ok(())
}

fn go_build(module: &Module, caches: &Caches, staged: &Path, log: &Path) -> Result<Command> {
    let mut linker = String::from("-s -w");
    for value in module.values {
        linker.push_str(&format!(" -X {value}"));
    }
    let log = File::create(log)?;
    let mut go = Command::new("go");
    // The linker drops the debugging information: it need not be made.
    go.args([
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-modcacherw",
        "-gcflags=all=-dwarf=false",
        "-ldflags",
        &linker,
        "-o",
    ]);
    go.arg(staged.join(module.name)).arg(module.package);
    go.current_dir(module.source()).env("CGO_ENABLED", "0");
    // A compiler lives for seconds: it collects its garbage less often than a program that stays.
    go.env("GOGC", "400");
    go.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    caches.set(&mut go);
    Ok(go)
}

/// Removes what was built from older sources of a module, unless it runs: the supervisor may have to start it again.
fn remove_older(module: &Module, target: &Path) -> Result<()> {
    let parent = target.parent().context("no folder")?;
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_older = is_build_of(module.name, &name) && entry.path() != target;
        if is_older && process::with_argument(&entry.path().display().to_string()).is_empty() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a folder's name is a module's name, a dash and a hash.
fn is_build_of(module: &str, folder: &str) -> bool {
    let hash = folder.strip_prefix(module).and_then(|rest| rest.strip_prefix('-')).unwrap_or_default();
    hash.len() == 16 && hash.chars().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_modules_own_folders_are_its_builds() {
        assert!(is_build_of("etcd", "etcd-0123456789abcdef"));
        for other in ["etcd-0123456789abcdef.partial", "etcd-extra-0123456789abcdef", "helm-0123456789abcdef", "etcd"] {
            assert!(!is_build_of("etcd", other), "{other}");
        }
    }
}
