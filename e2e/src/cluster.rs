//! The cluster on which tests run: ours, or the present kube context with `CADRE_CLUSTER=current`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{binaries, cache, unique, wait};

const LIMIT: Duration = Duration::from_secs(300);

/// A cluster that is up.
#[derive(Clone, Debug)]
pub struct Cluster {
    kubectl: PathBuf,
    /// Absent: kubectl's own choice.
    kubeconfig: Option<PathBuf>,
}

impl Cluster {
    /// Finds the cluster.
    ///
    /// # Errors
    /// When it doesn't answer: the message names the command that starts it.
    pub fn running() -> Result<Self> {
        let current = std::env::var("CADRE_CLUSTER").is_ok_and(|choice| choice == "current");
        let cluster = if current {
            Self { kubectl: "kubectl".into(), kubeconfig: None }
        } else {
            let kubeconfig = Some(cache::root()?.join("cluster/kubeconfig"));
            Self { kubectl: binaries::program("kubectl")?, kubeconfig }
        };
        cluster.run(&["get", "--raw", "/readyz"]).context("no cluster answers: run `cargo xtask cluster up`")?;
        Ok(cluster)
    }

    /// The kubeconfig of our cluster; absent when the user's is in use.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<&PathBuf> {
        self.kubeconfig.as_ref()
    }

    /// A kubectl command.
    #[must_use]
    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        if let Some(path) = &self.kubeconfig {
            kubectl.arg("--kubeconfig").arg(path);
        }
        kubectl.args(arguments).stdin(Stdio::null());
        kubectl
    }

    /// Runs kubectl and returns what it printed.
    ///
    /// # Errors
    /// When it fails: with its own message.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.kubectl(arguments).output().context("can't start kubectl")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {} failed: {}", arguments.join(" "), error.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A new namespace, whose name starts with `story`; it is deleted with what is in it when the value is dropped.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn namespace(&self, story: &str) -> Result<Namespace> {
        let name = format!("{story}-{}", unique::suffix());
        self.run(&["create", "namespace", &name])?;
        let namespace = Namespace { cluster: self.clone(), name };
        let account = ["get", "serviceaccount", "default"];
        wait::until("the namespace's service account", LIMIT, "see kube-controller-manager", || {
            Ok(namespace.run(&account).is_ok())
        })?;
        Ok(namespace)
    }
}

/// A namespace of one test.
#[derive(Debug)]
pub struct Namespace {
    cluster: Cluster,
    name: String,
}

impl Namespace {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs kubectl in it.
    ///
    /// # Errors
    /// When it fails: with its own message.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.run(&[&["--namespace", &self.name], arguments].concat())
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// When the API refuses one.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        let mut apply = self.cluster.kubectl(&["--namespace", &self.name, "apply", "-f", "-"]);
        let mut child = apply.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().context("no input")?.write_all(manifests.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "kubectl apply failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    /// Waits until objects have a condition, such as `condition=Ready` for `pod/a`.
    ///
    /// # Errors
    /// When they don't get it in time.
    pub fn wait_for(&self, what: &str, objects: &[&str]) -> Result<()> {
        let (wanted, limit) = (format!("--for={what}"), format!("--timeout={}s", LIMIT.as_secs()));
        self.run(&[&["wait", &wanted, &limit], objects].concat()).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.cluster.run(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}
