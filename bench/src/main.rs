//! Measures Cadre and prints one table: the cluster, `cadre dev`, and `cadre dev` beside agno's AgentOS.
//!
//! Owns the load and the arithmetic. It starts what it measures on this machine, except the cluster, which must be up
//! with Cadre on it. It speaks to loopback and to the cluster's own addresses only, and is bounded in count and time.

mod client;
mod cluster;
mod local;
mod process;
mod sse;
mod stats;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use table::Table;

/// Measure, and print one table.
#[derive(Debug, Parser)]
#[command(name = "cadre-bench", version)]
struct Arguments {
    /// What to measure; all of it if absent.
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    cluster: cluster::Arguments,
    #[command(flatten)]
    local: local::Arguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
enum Part {
    /// Cadre on the cluster of this machine.
    Cluster,
    /// `cadre dev` alone.
    Dev,
    /// `cadre dev` and agno's AgentOS, side by side.
    Peer,
}

fn main() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments = Arguments::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(measure(&arguments)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures what is asked for. What was measured before an error is printed.
async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let load = process::load_average();
    let mut table = Table::default();
    let measured = parts(arguments, &mut table).await;
    print(&table, load);
    measured
}

async fn parts(arguments: &Arguments, table: &mut Table) -> anyhow::Result<()> {
    let part = arguments.part;
    if part.is_none_or(|part| part == Part::Cluster) {
        cluster::measure(&arguments.cluster, table).await?;
    }
    if part != Some(Part::Cluster) {
        local::measure(&arguments.local, part != Some(Part::Dev), table).await?;
    }
    Ok(())
}

/// A machine at work measures its other work too, so the table says so.
#[expect(clippy::print_stdout, reason = "the table")]
fn print(table: &Table, load: Option<f64>) {
    println!("{table}");
    let Some(load) = load else { return };
    let verdict = if load < 1.5 { "quiet" } else { "NOISY: other programs were at work" };
    println!("Load of the machine before the measurement: {load:.2} ({verdict}).");
}
