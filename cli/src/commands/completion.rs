//! `completion SHELL`.

use clap::Args;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::render::terminal;

/// Print a completion script
///
/// For example: source <(cadre completion bash)
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Shell.
    shell: Shell,
}

/// Prints the script for the program's name.
///
/// # Errors
/// When it can't be written.
pub fn completion(args: &CompletionArgs, mut command: clap::Command, program: &str) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, program, &mut script);
    Ok(terminal::answer(&String::from_utf8_lossy(&script))?)
}
