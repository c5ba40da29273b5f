//! The project's own tasks: `cargo xtask --help` lists them.
//!
//! This is the first thing that a newcomer compiles, so it depends on little.

mod bench;
mod check;
mod cluster;
mod images;
mod oci;
mod quickstart;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Cadre's development tasks")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// A real Kubernetes with two nodes on this machine
    Cluster(cluster::Arguments),
    /// Make the images as OCI archives
    Images(images::Arguments),
    /// Measure, and print one table
    Bench(bench::Arguments),
    /// Run every check and every test
    Test(check::Arguments),
    /// Bring everything up on this machine and show an agent's answer
    Quickstart(quickstart::Arguments),
    /// Write the CRDs of the chart from the types
    Crds,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Cluster(arguments) => cluster::run(arguments),
        Task::Images(arguments) => images::run(&arguments),
        Task::Quickstart(arguments) => quickstart::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Test(arguments) => check::run(&arguments),
        Task::Crds => crds(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The messages say what to do; a backtrace would hide that.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The test that compares writes, if it is asked to: one place knows how a CRD is rendered.
fn crds() -> anyhow::Result<()> {
    let mut cargo = std::process::Command::new("cargo");
    cargo.args(["test", "--quiet", "--package", "cadre-crds", "--test", "generated"]).env("CADRE_UPDATE", "1");
    anyhow::ensure!(cargo.status()?.success(), "the CRDs could not be written");
    Ok(())
}
