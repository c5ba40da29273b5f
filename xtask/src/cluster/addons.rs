//! What the cluster's API must hold before the first user: rights, DNS service, storage classes. And waiting for its state.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cadre_e2e::{binaries, wait};

use super::command::{command, output};
use super::layout::Layout;
use super::network::{DNS_SERVICE, HOST, NODES, Node};
use super::services;

const MANIFESTS: [&str; 3] = [
    include_str!("../../../e2e/cluster/manifests/rights.yaml"),
    include_str!("../../../e2e/cluster/manifests/dns.yaml"),
    include_str!("../../../e2e/cluster/manifests/storage.yaml"),
];
const LIMIT: Duration = Duration::from_secs(300);

/// kubectl, set to the cluster.
pub struct Kubectl {
    program: PathBuf,
    layout: Layout,
}

impl Kubectl {
    /// Finds the built program.
    ///
    /// # Errors
    /// When it isn't built.
    pub fn new(layout: &Layout) -> Result<Self> {
        Ok(Self { program: binaries::program("kubectl")?, layout: layout.clone() })
    }

    /// A command with the cluster's kubeconfig.
    pub fn command(&self, arguments: &str) -> Command {
        let mut kubectl = command(&self.program);
        kubectl
            .arg("--kubeconfig")
            .arg(self.layout.kubeconfig())
            .arg("--request-timeout=60s")
            .args(arguments.split(' '));
        kubectl
    }

    /// Whether a command succeeds.
    ///
    /// # Errors
    /// When it can't start.
    pub fn succeeds(&self, arguments: &str) -> Result<bool> {
        Ok(self.command(arguments).output().context("can't start kubectl")?.status.success())
    }

    /// Applies the manifests of the cluster itself.
    ///
    /// # Errors
    /// When the API refuses one.
    pub fn apply_addons(&self) -> Result<()> {
        let mut apply = self.command("apply --server-side --force-conflicts -f -");
        let mut child = apply.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().context("no input")?.write_all(addons().as_bytes())?;
        let result = child.wait_with_output()?;
        ensure!(result.status.success(), "kubectl apply failed: {}", String::from_utf8_lossy(&result.stderr).trim());
        Ok(())
    }

    /// Waits until kube-apiserver is ready.
    ///
    /// # Errors
    /// When it isn't in time; the message names its log.
    pub fn wait_for_api(&self) -> Result<()> {
        let hint = format!("read {}", self.layout.log("kube-apiserver").display());
        wait::until("kube-apiserver to be ready", LIMIT, &hint, || self.succeeds("get --raw /readyz"))
    }

    /// Waits until the nodes' objects exist.
    ///
    /// # Errors
    /// When a kubelet doesn't register in time; the message names its log.
    pub fn wait_for_objects(&self) -> Result<()> {
        for node in NODES {
            let get = format!("get node {}", node.name());
            wait::until(&format!("{} to register", node.name()), LIMIT, &self.kubelet_hint(node), || {
                self.succeeds(&get)
            })?;
        }
        Ok(())
    }

    /// Waits until a node is Ready.
    ///
    /// # Errors
    /// When it isn't in time; the message names kubelet's log.
    pub fn wait_for_ready(&self, node: Node) -> Result<()> {
        wait::until(&format!("{} to be Ready", node.name()), LIMIT, &self.kubelet_hint(node), || self.is_ready(node))
    }

    /// Whether a node is Ready.
    ///
    /// # Errors
    /// When kubectl can't start.
    pub fn is_ready(&self, node: Node) -> Result<bool> {
        let path = r#"{.status.conditions[?(@.type=="Ready")].status}"#;
        let get = format!("get node {} -o jsonpath={path}", node.name());
        Ok(output(&mut self.command(&get)).is_ok_and(|status| status == "True"))
    }

    /// When a node last said that it lives.
    ///
    /// # Errors
    /// When the API doesn't know the node.
    pub fn last_sign_of_life(&self, node: Node) -> Result<String> {
        output(
            &mut self.command(&format!("get lease -n kube-node-lease {} -o jsonpath={{.spec.renewTime}}", node.name())),
        )
    }

    /// Waits until a node says that it lives, after `before`.
    ///
    /// # Errors
    /// When it stays silent; the message names kubelet's log.
    pub fn wait_for_sign_of_life(&self, node: Node, before: &str) -> Result<()> {
        let what = format!("a sign of life of {}", node.name());
        wait::until(&what, LIMIT, &self.kubelet_hint(node), || {
            Ok(self.last_sign_of_life(node).is_ok_and(|now| now != before))
        })
    }

    /// Waits until pods can be made and names are answered.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn wait_for_first_pod(&self) -> Result<()> {
        let hint = format!("read {}", self.layout.log("kube-controller-manager").display());
        wait::until("the service account of namespace default", LIMIT, &hint, || {
            self.succeeds("get serviceaccount default")
        })?;
        let hint = format!("read {}", self.layout.log("coredns").display());
        wait::until("DNS", LIMIT, &hint, || Ok(std::net::TcpStream::connect((HOST, 8181)).is_ok() && dns_is_ready()))
    }

    fn kubelet_hint(&self, node: Node) -> String {
        format!("read {}", self.layout.log(&services::name_on(node, "kubelet")).display())
    }
}

/// CoreDNS says on plain HTTP when it has read the cluster's services.
fn dns_is_ready() -> bool {
    use std::io::Read;
    let ask = || -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect((HOST, 8181))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /ready HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.lines().next().is_some_and(|line| line.contains(" 200 ")))
}

fn addons() -> String {
    MANIFESTS.join("---\n").replace("DNS_SERVICE", &DNS_SERVICE.to_string()).replace("DNS_SERVER", &HOST.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_has_a_value() {
        let text = addons();
        assert!(text.contains("clusterIP: 10.233.0.10") && text.contains("- 10.231.0.1"), "{text}");
        assert!(!text.contains("DNS_SERV"));
    }
}
