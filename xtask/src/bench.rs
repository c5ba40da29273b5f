//! `cargo xtask bench`: builds what measures and what is measured, as the images' programs are built, and prints the table.

use anyhow::{Context, Result, ensure};

use crate::cluster::command::command;
use crate::images::build;

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
    let programs = build::named(["cadre-bench", "cadre"])?;
    let mut bench = command(programs.path("cadre-bench"));
    let measured = bench.args(&arguments.arguments).status().context("can't start the benchmark")?;
    ensure!(measured.success(), "the benchmark did not come to its end");
    Ok(())
}
