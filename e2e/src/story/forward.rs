//! Ways into the cluster that kubectl opens on loopback: the Kubernetes API, and a port of a pod.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, bail};

use crate::cluster::Cluster;

/// A way in; closed when dropped.
#[derive(Debug)]
pub struct Forward {
    child: Child,
    /// Kept open: kubectl ends when it can't say what it does.
    _output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Forward {
    /// The Kubernetes API with the rights of the kubeconfig.
    ///
    /// # Errors
    /// When kubectl opens none.
    pub fn to_kubernetes(cluster: &Cluster) -> Result<Self> {
        Self::open(cluster, &["proxy", "--port=0"])
    }

    /// A port of one of a service's pods. It breaks when that pod ends.
    ///
    /// # Errors
    /// When there is no such pod at the moment.
    pub fn to_service(cluster: &Cluster, namespace: &str, service: &str, port: u16) -> Result<Self> {
        let (service, port) = (format!("service/{service}"), format!(":{port}"));
        Self::open(cluster, &["--namespace", namespace, "port-forward", "--address=127.0.0.1", &service, &port])
    }

    /// A port of a pod.
    ///
    /// # Errors
    /// As [`Self::to_service`].
    pub fn to_pod(cluster: &Cluster, namespace: &str, pod: &str, port: u16) -> Result<Self> {
        let (pod, port) = (format!("pod/{pod}"), format!(":{port}"));
        Self::open(cluster, &["--namespace", namespace, "port-forward", "--address=127.0.0.1", &pod, &port])
    }

    fn open(cluster: &Cluster, arguments: &[&str]) -> Result<Self> {
        let mut kubectl = cluster.kubectl(arguments);
        let mut child = kubectl.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("can't start kubectl")?;
        let mut output = BufReader::new(child.stdout.take().context("no output")?);
        let mut first = String::new();
        output.read_line(&mut first)?;
        let address = first.split_whitespace().find_map(|word| word.parse::<SocketAddr>().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("kubectl {} opened no port: {first:?}", arguments.join(" "));
        };
        Ok(Self { child, _output: output, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
