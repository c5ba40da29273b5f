//! Cluster, images, charts and the CLI.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::SYSTEM;
use crate::cluster::command::{command, output};
use crate::cluster::progress::Progress;
use crate::{cluster, images};

/// Programs that speak to the cluster.
pub struct Tools {
    /// Folder with kubectl, helm and kubectl-cadre.
    pub bin: PathBuf,
    /// The cluster's kubeconfig.
    pub kubeconfig: PathBuf,
}

impl Tools {
    /// kubectl with the cluster's kubeconfig.
    pub fn kubectl_command(&self) -> Command {
        self.program("kubectl")
    }

    /// The CLI with the cluster's kubeconfig.
    pub fn cadre(&self) -> Command {
        self.program("kubectl-cadre")
    }

    fn program(&self, name: &str) -> Command {
        let mut program = command(self.bin.join(name));
        program.env("KUBECONFIG", &self.kubeconfig);
        program
    }

    /// Runs kubectl.
    ///
    /// # Errors
    /// When it fails: with its message.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        output(self.kubectl_command().args(arguments))
    }

    /// Applies a manifest. It is never an argument, because it may hold a key.
    ///
    /// # Errors
    /// When kubectl refuses it.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let mut kubectl = self.kubectl_command();
        kubectl.args(["apply", "--namespace", super::NAMESPACE, "--filename", "-"]);
        let mut child = kubectl.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("can't start kubectl")?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(manifest.as_bytes())?;
        }
        ensure!(child.wait()?.success(), "kubectl refused a manifest");
        Ok(())
    }
}

/// What is told to the chart for a PostgreSQL.
const POSTGRES_VALUES: &str = "charts/cadre/values-postgresql.yaml";

/// Installs Cadre into a cluster, after making what is missing; with `postgres`, a database beside it.
///
/// # Errors
/// When a step fails.
pub fn cadre(progress: &Progress, root: &Path, postgres: bool) -> Result<Tools> {
    // Only a real model is outside of this machine. A mistake in the environment is told before all else.
    let egress = super::model::from_environment()?.is_some();
    progress.say("Kubernetes (the first time some minutes of compiling)");
    cluster::prepare()?;
    // Before the cluster starts, which would take its share of the processors.
    progress.say("images (the first time some minutes of compiling)");
    let made = images::make(postgres)?;
    progress.say("the cluster");
    cluster::up(egress)?;
    cluster::load(&made.archives)?;
    let bin = cluster::bin_folder()?;
    link(&made.cli, &bin.join("kubectl-cadre"))?;
    let tools = Tools { bin, kubeconfig: cluster::kubeconfig()? };
    progress.say("charts: custom resources, then operator and API server");
    charts(&tools, root, &made, postgres)?;
    Ok(tools)
}

fn charts(tools: &Tools, root: &Path, made: &images::Made, postgres: bool) -> Result<()> {
    let helm = |arguments: &[&str]| -> Result<String> {
        let mut helm = tools.program("helm");
        output(helm.args(["upgrade", "--install", "--namespace", SYSTEM, "--create-namespace"]).args(arguments))
            .context("helm could not install; `kubectl get pods,events -n cadre-system` tells more")
    };
    helm(&["cadre-crds", &root.join("charts/cadre-crds").display().to_string()])?;
    let mut arguments = vec![
        "cadre".to_owned(),
        root.join("charts/cadre").display().to_string(),
        "--wait".to_owned(),
        "--timeout=600s".to_owned(),
    ];
    if postgres {
        arguments.push(format!("--values={}", root.join(POSTGRES_VALUES).display()));
    }
    for (key, name) in &made.names {
        arguments.push("--set".to_owned());
        arguments.push(format!("images.{key}={}", cluster::image_name(name)?));
    }
    helm(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(())
}

fn link(target: &Path, link: &Path) -> Result<()> {
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(link)?;
    }
    std::os::unix::fs::symlink(target, link).with_context(|| format!("can't make {}", link.display()))
}
