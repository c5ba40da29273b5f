//! Runs other programs.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// A command without input.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Runs a command line whose words are separated by spaces, and returns what it printed.
///
/// # Errors
/// When it can't start or fails: with its own message.
pub fn run(line: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let mut command = command(words.next().context("an empty command")?);
    command.args(words);
    output(&mut command)
}

/// Runs a command line and tells only whether it succeeded.
pub fn succeeds(line: &str) -> bool {
    run(line).is_ok()
}

/// Runs a command and returns what it printed.
///
/// # Errors
/// When it can't start or fails: with its own message.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let Output { status, stdout, stderr } = command.output().with_context(|| format!("can't start {name}"))?;
    if !status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.display().to_string()).collect();
        bail!("{name} {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&stderr).trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}
