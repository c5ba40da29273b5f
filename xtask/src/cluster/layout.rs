//! Where the cluster keeps its files: everything is below one folder.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use cadre_e2e::cache;

use super::network::Node;

/// Linux refuses longer paths of sockets.
const SOCKET_PATH_LIMIT: usize = 107;

/// The paths of one cluster.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout below a folder.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The layout in the project's cache.
    ///
    /// # Errors
    /// When the cache has no place, or its path is too long for the sockets in it.
    pub fn in_cache() -> Result<Self> {
        let layout = Self::new(&cache::root()?.join("cluster"));
        let longest = layout.node(super::network::NODES[0]).containerd_socket().as_os_str().len() + ".ttrpc".len();
        ensure!(
            longest <= SOCKET_PATH_LIMIT,
            "{} is too long a path: set CADRE_CACHE to a shorter one",
            layout.root.display()
        );
        Ok(layout)
    }

    /// The folder that holds all.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the user's programs read to reach the cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// Links to kubectl and helm.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// Certificates.
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// A component's kubeconfig.
    pub fn component_kubeconfig(&self, user: &str) -> PathBuf {
        self.pki().join(format!("{user}.kubeconfig"))
    }

    /// Held while one command changes the cluster. It is outside, because `down` removes the folder.
    pub fn lock(&self) -> PathBuf {
        self.root.with_extension("lock")
    }

    /// Pid files and gates.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The pid file of a service.
    pub fn pid_file(&self, service: &str) -> PathBuf {
        self.run().join(format!("{service}.pid"))
    }

    /// Logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join("log")
    }

    /// The log of a service.
    pub fn log(&self, service: &str) -> PathBuf {
        self.logs().join(format!("{service}.log"))
    }

    /// What the supervisor runs.
    pub fn services(&self) -> PathBuf {
        self.root.join("services.json")
    }

    /// The supervisor's own program: a copy, so that a later build can't change it while it runs.
    pub fn supervisor(&self) -> PathBuf {
        self.root.join("cadre-cluster-supervisor")
    }

    /// Kernel settings as they were before.
    pub fn saved_settings(&self) -> PathBuf {
        self.root.join("settings.json")
    }

    /// The data of etcd.
    pub fn etcd(&self) -> PathBuf {
        self.root.join("etcd")
    }

    /// The configuration of CoreDNS.
    pub fn corefile(&self) -> PathBuf {
        self.root.join("Corefile")
    }

    /// The folders behind persistent volumes.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// The part of a node.
    pub fn node(&self, node: Node) -> NodeLayout {
        NodeLayout { root: self.root.join(node.name()) }
    }
}

/// The paths of one node.
#[derive(Clone, Debug)]
pub struct NodeLayout {
    root: PathBuf,
}

impl NodeLayout {
    /// The folder that holds all of the node.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Exists while the node is off; the supervisor then starts nothing of it.
    pub fn off(&self) -> PathBuf {
        self.root.join("off")
    }

    /// The configuration of containerd.
    pub fn containerd_config(&self) -> PathBuf {
        self.root.join("containerd.toml")
    }

    /// The socket of containerd.
    pub fn containerd_socket(&self) -> PathBuf {
        self.root.join("containerd.sock")
    }

    /// Images and containers: what a disk keeps.
    pub fn containerd_root(&self) -> PathBuf {
        self.root.join("containerd")
    }

    /// Running containers: what a power cut loses.
    pub fn containerd_state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The folder of network configurations.
    pub fn cni(&self) -> PathBuf {
        self.root.join("cni")
    }

    /// Addresses that pods have.
    pub fn addresses(&self) -> PathBuf {
        self.root.join("addresses")
    }

    /// The configuration of kubelet.
    pub fn kubelet_config(&self) -> PathBuf {
        self.root.join("kubelet.json")
    }

    /// The folder of kubelet: pods' volumes.
    pub fn kubelet_root(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    /// Plugins of kubelet for volumes: none.
    pub fn kubelet_plugins(&self) -> PathBuf {
        self.root.join("volume-plugins")
    }

    /// Logs of containers.
    pub fn pod_logs(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// The resolver settings for pods that don't use the cluster's.
    pub fn resolv_conf(&self) -> PathBuf {
        self.root.join("resolv.conf")
    }
}
