//! `make test`: every check and every test, one after the other, and one summary line.

mod count;
mod postgres;
mod python;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cluster::command::command;
use crate::cluster::progress::Progress;
use count::Count;

#[derive(clap::Args)]
pub struct Arguments {
    /// Only a part
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// A part of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Formatting and lints.
    Checks,
    /// Tests that need no cluster with nodes.
    Units,
    /// Tests on the cluster: the cluster itself, the example, crashes, node loss, isolation, silence, leaks.
    Cluster,
    /// The crash matrix in full: 100 runs, 20 rounds. Only when asked for; `CADRE_MATRIX_…` change its size.
    Matrix,
}

/// The size of the full matrix; what is set in the environment goes first.
const MATRIX: [(&str, &str); 2] = [("CADRE_MATRIX_RUNS", "100"), ("CADRE_MATRIX_ROUNDS", "20")];

/// Runs them.
///
/// # Errors
/// When a check or a test failed; all tests are run first.
pub fn run(arguments: &Arguments) -> Result<()> {
    let progress = Progress::start();
    let wants = |part| arguments.only.is_none_or(|only| only == part);
    let mut count = Count::default();
    if wants(Part::Checks) {
        progress.say("formatting and lints");
        plain(command("cargo").args(["fmt", "--all", "--check"]), "run `cargo fmt --all`")?;
        let clippy = ["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--", "--deny", "warnings"];
        plain(command("cargo").args(clippy), "mend what clippy says")?;
    }
    if wants(Part::Units) {
        postgres::prepare(&progress)?;
        progress.say("the programs of a Kubernetes (the first time some minutes of compiling)");
        crate::cluster::build()?;
        let judges = python::judges(&progress)?;
        progress.say("tests that need no nodes");
        tests(&mut count, &["--workspace", "--exclude", "cadre-e2e"], &judges)?;
    }
    if wants(Part::Cluster) {
        progress.say("the cluster, with Cadre on it");
        crate::quickstart::install()?;
        progress.say("tests on the cluster");
        // One at a time: they end nodes and servers that the others need.
        tests(&mut count, &["--package", "cadre-e2e", "--", "--test-threads=1"], &[])?;
    }
    if arguments.only == Some(Part::Matrix) {
        progress.say("the cluster, with Cadre on it");
        crate::quickstart::install()?;
        progress.say("the crash matrix");
        let size = MATRIX.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
        let size: Vec<_> = size.map(|(name, value)| (name, PathBuf::from(value))).collect();
        tests(&mut count, &["--package", "cadre-e2e", "--test", "matrix"], &size)?;
    }
    progress.say("all is run");
    finish(&count)
}

#[expect(clippy::print_stdout, reason = "the summary line")]
fn finish(count: &Count) -> Result<()> {
    println!("{} passed, {} failed", count.passed, count.failed);
    ensure!(count.failed == 0 && !count.broken, "not all is well: see above");
    Ok(())
}

fn plain(command: &mut Command, hint: &str) -> Result<()> {
    let status = command.status().context("can't start cargo")?;
    ensure!(status.success(), "{hint}");
    Ok(())
}

/// Runs tests, passes their output on, and counts.
fn tests(count: &mut Count, arguments: &[&str], variables: &[(&str, PathBuf)]) -> Result<()> {
    let mut cargo = command("cargo");
    cargo.envs(variables.iter().map(|(name, value)| (name, value)));
    cargo.args(["test", "--locked", "--no-fail-fast"]).args(arguments).stdout(Stdio::piped());
    let mut child = cargo.spawn().context("can't start cargo")?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            count.read(&line);
            pass_on(&line);
        }
    }
    count.broken |= !child.wait()?.success();
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the tests' own output")]
fn pass_on(line: &str) {
    println!("{line}");
}
