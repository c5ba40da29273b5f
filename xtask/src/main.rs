//! The project's own tasks: `cargo xtask --help` lists them.
//!
//! This is the first thing that a newcomer compiles, so it depends on little.

mod cluster;
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
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Cluster(arguments) => cluster::run(arguments),
    }
}
