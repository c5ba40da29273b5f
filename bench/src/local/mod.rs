//! `cadre dev`, alone and beside agno's AgentOS: the same loads, sides interleaved, one model server for both.
//!
//! Owns the servers that it starts, and ends them. Traffic is on loopback only.

mod load;
mod measures;
mod peer;
mod postgres;
mod server;
mod sides;
mod stub;
mod troubles;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use crate::table::Table;

/// Which programs.
#[derive(Debug, clap::Args)]
#[group(id = "local_arguments", multiple = true)]
pub struct Arguments {
    /// A release build of `cadre` [default: the program beside this one]
    #[arg(long, global = true, env = "CADRE_PROGRAM", value_name = "PATH")]
    program: Option<PathBuf>,
    /// Python with agno [default: a virtual environment in the cache, made when missing]
    #[arg(long, global = true, env = "CADRE_AGNO_PYTHON", value_name = "PATH")]
    python: Option<PathBuf>,
    /// Measure these only [default: all]
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    only: Vec<What>,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Starts.
    Start,
    /// Resident memory.
    Memory,
    /// Runs without a stream.
    Runs,
    /// Background runs.
    Queue,
    /// First events.
    Streams,
    /// Turns of one session.
    Turns,
    /// Runs read again.
    Replay,
    /// Cancels, and workers that are killed.
    Troubles,
}

/// Measures.
///
/// # Errors
/// When a server can't be started or a run ends badly.
pub async fn measure(arguments: &Arguments, beside: bool, table: &mut Table) -> Result<()> {
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("cadre"),
    };
    ensure!(program.is_file(), "there is no {}: build it, or name it with --program", program.display());
    let python = match (beside, &arguments.python) {
        (false, _) => None,
        (true, Some(python)) => Some(python.clone()),
        (true, None) => Some(peer::python().context("agno can't be installed; `cadre-bench dev` does without")?),
    };
    let program = program.canonicalize()?;
    sides::measure(&program, python.as_deref(), &arguments.only, table).await
}
