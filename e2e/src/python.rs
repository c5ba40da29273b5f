//! Python programs that judge the server: each set of requirements in an environment of its own, made once, in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cache;

/// The Python that has what a requirements file lists. Its first line, `name==version`, names the environment.
///
/// # Errors
/// When there is no Python, or a package can't be installed.
pub fn environment(requirements: &Path) -> Result<PathBuf> {
    let text =
        std::fs::read_to_string(requirements).with_context(|| format!("can't read {}", requirements.display()))?;
    let pinned = text.lines().next().and_then(|line| line.trim().split_once("=="));
    let (name, version) = pinned.with_context(|| format!("{} names no version first", requirements.display()))?;
    let folder = cache::root()?.join(format!("{name}-{version}"));
    let (python, done) = (folder.join("bin/python"), folder.join("complete"));
    if std::fs::read_to_string(&done).is_ok_and(|installed| installed == text) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements))?;
    std::fs::write(done, text)?;
    Ok(python)
}

/// Runs a program to its end; answers what it said.
///
/// # Errors
/// When it can't be started or fails. The message has all that it said.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("can't start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed:\n{said}{error}");
    Ok(said)
}
