//! `cargo xtask bench`: builds what measures and what is measured, and prints the table.

use anyhow::{Context, Result, ensure};

use crate::cluster::command::command;

#[derive(clap::Args)]
pub struct Arguments {
    /// What to measure (cluster, dev, peer; all if absent) and its options: `cargo xtask bench -- --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Measures. The cluster part needs a cluster with Cadre on it (`make up`).
///
/// # Errors
/// When something can't be built or measured.
pub fn run(arguments: &Arguments) -> Result<()> {
    let build = ["build", "--release", "--locked", "--package", "cadre-bench", "--package", "cadre-cli"];
    let built = command("cargo").args(build).status().context("can't start cargo")?;
    ensure!(built.success(), "the benchmark could not be built");
    let run = ["run", "--release", "--quiet", "--locked", "--package", "cadre-bench", "--"];
    let measured = command("cargo").args(run).args(&arguments.arguments).status().context("can't start cargo")?;
    ensure!(measured.success(), "the benchmark did not come to its end");
    Ok(())
}
