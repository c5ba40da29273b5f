//! `make quickstart`: from a machine with the base toolchains to an agent's answer.
//!
//! Each step says what it does and how long it took; a failure says what to do. Every step finds what an earlier call
//! has done, so that a second call is quick. `model` decides which model answers.

mod install;
mod model;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cluster::command::{command, output};
use crate::cluster::progress::Progress;

/// Namespace of operator and API server.
const SYSTEM: &str = "cadre-system";
/// Namespace of the example.
const NAMESPACE: &str = "default";
const EXAMPLE: &str = "examples/quickstart";
const RUN: &str = "sales-report";

#[derive(clap::Args)]
pub struct Arguments {
    /// Stop when Cadre is installed; apply no example
    #[arg(long)]
    install_only: bool,
    /// Keep the record in a PostgreSQL on the cluster, with two API servers (charts/cadre/values-postgresql.yaml). For evaluation only
    #[arg(long)]
    postgres: bool,
}

/// Brings everything up and shows an answer.
///
/// # Errors
/// When a step fails: with what to do.
pub fn run(arguments: &Arguments) -> Result<()> {
    let progress = Progress::start();
    let root = workspace()?;
    let tools = install::cadre(&progress, &root, arguments.postgres)?;
    if arguments.install_only {
        progress.say("Cadre is installed");
        return Ok(());
    }
    progress.say(&format!("applying {EXAMPLE}"));
    // A Run is one turn and can't change: this call's own one takes the place of an earlier call's.
    tools.kubectl(&["delete", "run", RUN, "--namespace", NAMESPACE, "--ignore-not-found"])?;
    apply_example(&tools, &root)?;
    progress.say("the agent works; its tool calls and its answer:");
    follow(&tools)?;
    progress.say("done");
    show(&tools, &root)
}

/// Brings up the cluster with Cadre on it.
///
/// # Errors
/// As [`run`].
pub fn install() -> Result<()> {
    run(&Arguments { install_only: true, postgres: false })
}

fn workspace() -> Result<PathBuf> {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().context("the project's folder is gone")
}

fn apply_example(tools: &install::Tools, root: &Path) -> Result<()> {
    if let Some(model) = model::from_environment()? {
        tools.apply(&model.secret)?;
        tools.apply(&model.model)?;
        for file in ["20-agent.yaml", "30-run.yaml"] {
            let path = root.join(EXAMPLE).join(file);
            tools.kubectl(&["apply", "--namespace", NAMESPACE, "--filename", &path.display().to_string()])?;
        }
        return Ok(());
    }
    let folder = root.join(EXAMPLE).display().to_string();
    tools.kubectl(&["apply", "--namespace", NAMESPACE, "--filename", &folder])?;
    Ok(())
}

/// Streams the run to the terminal, then waits for the object to say how it ended.
fn follow(tools: &install::Tools) -> Result<()> {
    let run = format!("run/{RUN}");
    let status = tools
        .cadre()
        .args(["logs", "--follow", "--namespace", NAMESPACE, &run])
        .status()
        .context("can't start kubectl-cadre")?;
    ensure!(status.success(), "the run can't be followed: kubectl describe {run} tells how it stands");
    tools.kubectl(&["wait", "--namespace", NAMESPACE, "--for=condition=Finished", "--timeout=300s", &run])?;
    let told = "jsonpath={.status.phase} {.status.error.message}";
    let told = tools.kubectl(&["get", "--namespace", NAMESPACE, &run, "--output", told])?;
    let (phase, message) = told.split_once(' ').unwrap_or((&told, ""));
    ensure!(phase == "Completed", "the run ended {phase}: {message}\n{}", hint());
    Ok(())
}

/// What to do about a run that did not end well.
fn hint() -> &'static str {
    if matches!(model::from_environment(), Ok(Some(_))) {
        "The model comes from your environment: correct its key, MODEL_BASE_URL or MODEL_NAME, and call this again"
    } else {
        "kubectl describe run/sales-report and docs/troubleshooting.md tell more; then call this again"
    }
}

fn show(tools: &install::Tools, root: &Path) -> Result<()> {
    let mut get: Command = tools.kubectl_command();
    get.args(["get", "--namespace", NAMESPACE, "agents,runs,sandboxes,pods"]).stdout(Stdio::inherit());
    output(&mut get)?;
    let lines = [
        "",
        "What to try next (each line works as it stands):",
        &format!("  export KUBECONFIG={} PATH={}:$PATH", tools.kubeconfig.display(), tools.bin.display()),
        &format!("  kubectl describe run/{RUN}"),
        "  kubectl cadre run agent/analyst \"Which region sold most?\"",
        "  kubectl cadre runs",
        "  kubectl get agents -o wide --watch",
        &format!("  $EDITOR {}/{EXAMPLE}/20-agent.yaml   # then kubectl apply -f it", root.display()),
        "  make down     # ends the cluster and leaves nothing behind",
    ];
    let mut text = lines.join("\n");
    text.push('\n');
    output(command("cat").stdin(stdin_of(&text)?).stdout(Stdio::inherit()))?;
    Ok(())
}

/// A pipe's reading end that holds a short text.
fn stdin_of(text: &str) -> Result<Stdio> {
    use std::io::Write as _;
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(text.as_bytes())?;
    Ok(reader.into())
}
