//! A hand on the nodes of our own cluster: containers are killed and looked into from outside, as root of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{LIMIT, Story};
use crate::{cache, wait};

/// A container that runs.
#[derive(Debug, Clone)]
pub struct Container {
    node: String,
    id: String,
    /// Its first process, in the machine's numbers.
    pub pid: u32,
}

impl Story {
    /// Whether the nodes are ours. Stories that need a hand on them end at once elsewhere.
    #[must_use]
    pub fn has_own_nodes(&self) -> bool {
        self.cluster.kubeconfig().is_some()
    }

    /// A container of a pod, once it runs.
    ///
    /// # Errors
    /// When it doesn't run in time.
    pub fn container(&self, namespace: &str, pod: &str, name: &str) -> Result<Container> {
        let mut found = None;
        wait::until(&format!("the container {name} of {pod} to run"), LIMIT, "kubectl describe pod", || {
            // What Kubernetes knows may be what was before a crash.
            let object = self.kubernetes.object(namespace, "pods", pod)?;
            found = object.and_then(|pod| Container::of(&pod, name).ok());
            Ok(found.is_some())
        })?;
        found.context("no container")
    }

    /// Cuts a node's power, or starts it: `kill` or `restart`.
    ///
    /// # Errors
    /// When that fails.
    pub fn power(&self, verb: &str, node: &str) -> Result<()> {
        xtask(&["cluster", "node", verb, node])
    }

    /// Sees to it that [`Self::power`] will not have to compile first.
    ///
    /// # Errors
    /// When the cluster is not up.
    pub fn prepare_power(&self) -> Result<()> {
        xtask(&["cluster", "status"])
    }
}

/// Runs a task of the project.
///
/// # Errors
/// When it fails: with what it said.
pub fn xtask(arguments: &[&str]) -> Result<()> {
    let mut xtask = Command::new(env!("CARGO"));
    xtask.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    run(xtask.arg("xtask").args(arguments)).map(drop)
}

/// The id of a container that runs.
fn id(pod: &Value, name: &str) -> Option<String> {
    let mut statuses = pod["status"]["containerStatuses"].as_array()?.iter();
    let status = statuses.find(|status| status["name"] == name && status["state"]["running"].is_object())?;
    status["containerID"].as_str()?.strip_prefix("containerd://").map(str::to_owned)
}

impl Container {
    /// A container of a pod, as it was when the pod was read.
    ///
    /// # Errors
    /// When it did not run, or does not run any more.
    pub fn of(pod: &Value, name: &str) -> Result<Self> {
        let id = id(pod, name).context("no container")?;
        let node = pod["spec"]["nodeName"].as_str().context("no node")?.to_owned();
        let tasks = run(ctr(&node)?.args(["tasks", "list"]))?;
        let row = tasks.lines().find(|row| row.starts_with(&id)).context("containerd does not know the container")?;
        let pid = row.split_whitespace().nth(1).context("no pid")?.parse()?;
        Ok(Self { node, id, pid })
    }

    /// `kill -9` of its first process, and with it of all others.
    ///
    /// # Errors
    /// When containerd refuses.
    pub fn kill(&self) -> Result<()> {
        run(ctr(&self.node)?.args(["tasks", "kill", "--signal", "SIGKILL", &self.id])).map(drop)
    }

    /// A file of its first process's folder in /proc.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn proc(&self, file: &str) -> Result<Vec<u8>> {
        let path = Path::new("/proc").join(self.pid.to_string()).join(file);
        fs::read(&path).with_context(|| format!("can't read {}", path.display()))
    }

    /// All processes of the container, in the machine's numbers.
    ///
    /// # Errors
    /// When /proc can't be read.
    pub fn pids(&self) -> Result<Vec<u32>> {
        let space = fs::read_link(format!("/proc/{}/ns/pid", self.pid))?;
        let all = fs::read_dir("/proc")?.flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        Ok(pids.filter(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|other| other == space)).collect())
    }

    /// The root folder as the container sees it, with all that is mounted there.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.pid).into()
    }
}

fn ctr(node: &str) -> Result<Command> {
    let socket = cache::root()?.join("cluster").join(node).join("containerd.sock");
    let mut ctr = Command::new("ctr");
    ctr.arg("--address").arg(socket).args(["--namespace", "k8s.io"]);
    Ok(ctr)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("can't start {command:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
