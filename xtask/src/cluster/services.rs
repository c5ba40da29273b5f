//! The programs that make the cluster, as a list that the supervisor keeps running.

use std::path::{Path, PathBuf};

use anyhow::Result;
use cadre_e2e::binaries;
use serde::{Deserialize, Serialize};

use super::cgroup::{self, Hierarchies};
use super::config::arguments;
use super::layout::Layout;
use super::network::{NODES, Node};

/// What must have happened before a program is of use. `up` opens gates; they stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// kube-apiserver answers.
    ControlPlane,
    /// The nodes' objects exist.
    Nodes,
}

impl Gate {
    /// The file that opens the gate.
    pub fn file(self, layout: &Layout) -> PathBuf {
        layout.run().join(match self {
            Self::ControlPlane => "control-plane-is-up",
            Self::Nodes => "nodes-are-there",
        })
    }
}

/// One program to keep running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its name, which is also the name of its log and pid file.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The file through which it joins its control group.
    pub entrance: PathBuf,
    /// The network namespace in which it runs; this machine's when absent.
    pub namespace: Option<String>,
    /// It isn't started before this gate is open.
    pub gate: Option<Gate>,
    /// It isn't started while this file exists.
    pub unless: Option<PathBuf>,
}

impl Service {
    /// The command line that joins the group, enters the namespace and becomes the program.
    ///
    /// `ip netns exec` would remount /sys and hide the control groups; `nsenter` changes the network alone.
    pub fn command_line(&self) -> Vec<String> {
        let script = r#"echo $$ > "$0" && exec "$@""#;
        let mut line: Vec<String> = ["sh", "-c", script].map(str::to_owned).into();
        line.push(self.entrance.display().to_string());
        if let Some(namespace) = &self.namespace {
            line.extend(["nsenter".to_owned(), format!("--net=/run/netns/{namespace}"), "--".to_owned()]);
        }
        line.extend(self.command.iter().cloned());
        line
    }
}

/// All services of the cluster.
///
/// # Errors
/// When a program isn't built.
pub fn all(layout: &Layout, hierarchies: &Hierarchies) -> Result<Vec<Service>> {
    let control_plane = |name: &str, program: &str, arguments: Vec<String>, gate: Option<Gate>| -> Result<Service> {
        Ok(Service {
            name: name.to_owned(),
            command: command(&binaries::program(program)?, arguments),
            entrance: hierarchies.entrance(&cgroup::control_plane()),
            namespace: None,
            gate,
            unless: None,
        })
    };
    let gate = Some(Gate::ControlPlane);
    let mut services = vec![
        control_plane("etcd", "etcd", arguments::etcd(layout), None)?,
        control_plane("kube-apiserver", "kube-apiserver", arguments::api_server(layout), None)?,
        control_plane(
            "kube-controller-manager",
            "kube-controller-manager",
            arguments::controller_manager(layout),
            gate,
        )?,
        control_plane("kube-scheduler", "kube-scheduler", arguments::scheduler(layout), gate)?,
        control_plane("coredns", "coredns", arguments::coredns(layout), gate)?,
        control_plane("volumes", "volumes", arguments::volumes(layout), gate)?,
    ];
    for node in NODES {
        services.extend(of_node(node, layout, hierarchies)?);
    }
    Ok(services)
}

fn of_node(node: Node, layout: &Layout, hierarchies: &Hierarchies) -> Result<[Service; 4]> {
    let service = |program: &str, command: Vec<String>, gate: Option<Gate>| Service {
        name: name_on(node, program),
        command,
        entrance: hierarchies.entrance(&cgroup::node_programs(node)),
        namespace: Some(node.namespace()),
        gate,
        unless: Some(layout.node(node).off()),
    };
    let containerd = ["containerd".into(), "-c".into(), layout.node(node).containerd_config().display().to_string()];
    let built = |program: &str, arguments: Vec<String>| {
        Ok::<_, anyhow::Error>(command(&binaries::program(program)?, arguments))
    };
    let gate = Some(Gate::ControlPlane);
    Ok([
        service("containerd", containerd.into(), None),
        service("kubelet", built("kubelet", arguments::kubelet(node, layout))?, gate),
        service("kube-proxy", built("kube-proxy", arguments::proxy(node, layout))?, gate),
        // It ends when its node's object doesn't exist yet.
        service("kube-router", built("kube-router", arguments::router(node, layout))?, Some(Gate::Nodes)),
    ])
}

/// The name of a node's service.
pub fn name_on(node: Node, program: &str) -> String {
    format!("{}-{program}", node.name())
}

fn command(program: &Path, arguments: Vec<String>) -> Vec<String> {
    std::iter::once(program.display().to_string()).chain(arguments).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_program_joins_its_group_and_enters_its_namespace() {
        let service = Service {
            name: "node-1-x".into(),
            command: vec!["x".into(), "--flag".into()],
            entrance: "/g/cgroup.procs".into(),
            namespace: Some("cadre-node-1".into()),
            gate: None,
            unless: None,
        };
        let line = service.command_line();
        assert_eq!(line[3], "/g/cgroup.procs");
        assert_eq!(line[4..], ["nsenter", "--net=/run/netns/cadre-node-1", "--", "x", "--flag"]);
    }
}
