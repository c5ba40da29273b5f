//! The project's own tasks: `cargo xtask --help` lists them.
//!
//! This is the first thing that a newcomer compiles, so it depends on little.

mod cluster;
mod images;
mod oci;

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
    /// Write the CRDs of the chart from the types
    Crds,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Cluster(arguments) => cluster::run(arguments),
        Task::Images(arguments) => images::run(&arguments),
        Task::Crds => crds(),
    }
}

/// The test that compares writes, if it is asked to: one place knows how a CRD is rendered.
fn crds() -> anyhow::Result<()> {
    let mut cargo = std::process::Command::new("cargo");
    cargo.args(["test", "--quiet", "--package", "cadre-crds", "--test", "generated"]).env("CADRE_UPDATE", "1");
    anyhow::ensure!(cargo.status()?.success(), "the CRDs could not be written");
    Ok(())
}
