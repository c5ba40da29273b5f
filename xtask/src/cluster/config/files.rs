//! Configuration files of a node and of DNS.

use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

use super::super::cgroup;
use super::super::layout::{Layout, NodeLayout};
use super::super::network::{DNS_SERVICE, HOST, Node};
use super::super::pause;

/// The longest that a node may be silent is twice the time between its signs of life and some more; see `arguments`.
const LEASE_SECONDS: u32 = 20;
/// Processes in one pod: a fork bomb ends there.
const POD_PIDS: u32 = 512;

/// containerd's configuration. Version 2 of the format is read by containerd 1.6 and by 2.x.
pub fn containerd(paths: &NodeLayout, cni_programs: &Path) -> String {
    let NodePaths { root, state, socket, cni } = NodePaths::of(paths);
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Without CAP_SYS_RESOURCE, as in many virtual machines, scores can only be raised.
restrict_oom_score_adj = true
# Else these lie in /run/netns, where other programs keep theirs.
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{programs}"
conf_dir = "{cni}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
Root = "{state}/runc"
"#,
        pause = pause::IMAGE,
        programs = cni_programs.display(),
    )
}

struct NodePaths {
    root: String,
    state: String,
    socket: String,
    cni: String,
}

impl NodePaths {
    fn of(paths: &NodeLayout) -> Self {
        let text = |path: std::path::PathBuf| path.display().to_string();
        Self {
            root: text(paths.containerd_root()),
            state: text(paths.containerd_state()),
            socket: text(paths.containerd_socket()),
            cni: text(paths.cni()),
        }
    }
}

/// The pods' network on a node: a bridge inside of its namespace, without address translation.
pub fn cni(node: Node, paths: &NodeLayout) -> Value {
    let address = json!({
        "type": "host-local",
        "dataDir": paths.addresses(),
        "ranges": [[{"subnet": node.pods().to_string()}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": address,
    });
    let ports = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    json!({"cniVersion": "1.0.0", "name": node.namespace(), "plugins": [bridge, ports]})
}

/// kubelet's configuration.
pub fn kubelet(node: Node, layout: &Layout) -> Value {
    let paths = layout.node(node);
    let (name, pki) = (node.name(), layout.pki());
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address(),
        "healthzBindAddress": Ipv4Addr::LOCALHOST,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.join(format!("{name}.crt")),
        "tlsPrivateKeyFile": pki.join(format!("{name}.key")),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup::node(node),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": ["pods"],
        // Still needed where the kernel was started with the old cgroups; without meaning elsewhere.
        "failCgroupV1": false,
        "failSwapOn": false,
        "podPidsLimit": POD_PIDS,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": paths.resolv_conf(),
        "containerRuntimeEndpoint": format!("unix://{}", paths.containerd_socket().display()),
        "podLogsDir": paths.pod_logs(),
        "volumePluginDir": paths.kubelet_plugins(),
        "nodeStatusUpdateFrequency": "5s",
        "nodeLeaseDurationSeconds": LEASE_SECONDS,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        // No registry could give an image back, so none is ever removed.
        "imageGCHighThresholdPercent": 100,
    })
}

/// The resolver settings for pods that don't use the cluster's DNS service.
pub fn resolv_conf() -> String {
    format!("nameserver {HOST}\n")
}

/// CoreDNS's configuration; with `egress` it also answers for names outside of the cluster.
pub fn corefile(layout: &Layout, egress: bool) -> String {
    let forward = if egress { "  forward . /etc/resolv.conf\n" } else { "" };
    format!(
        r#".:53 {{
  bind {HOST}
  errors
  ready {HOST}:8181
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig "{kubeconfig}"
    ttl 5
  }}
  cache 5
  loadbalance
{forward}}}
"#,
        kubeconfig = layout.component_kubeconfig("coredns").display(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::network::NODES;
    use super::*;

    fn layout() -> Layout {
        Layout::new(Path::new("/c"))
    }

    #[test]
    fn all_of_containerd_lies_in_the_nodes_folder() {
        let text = containerd(&layout().node(NODES[0]), Path::new("/usr/lib/cni"));
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).unwrap();
        for key in ["root", "state", "address", "conf_dir"] {
            assert!(value(key).starts_with("\"/c/node-1/"), "{key}");
        }
        assert_eq!(value("bin_dir"), "\"/usr/lib/cni\"");
        assert_eq!(value("netns_mounts_under_state_dir"), "true");
    }

    #[test]
    fn a_nodes_pods_have_addresses_of_its_range() {
        let config = cni(NODES[1], &layout().node(NODES[1]));
        let bridge = &config["plugins"][0];
        assert_eq!(bridge["ipam"]["ranges"][0][0]["subnet"], "10.232.2.0/24");
        assert_eq!(bridge["ipMasq"], false, "policies see the pods' own addresses");
    }

    #[test]
    fn kubelet_bounds_processes_and_listens_on_the_nodes_address_only() {
        let config = kubelet(NODES[0], &layout());
        assert_eq!(config["podPidsLimit"], 512);
        assert_eq!(config["address"], "10.231.0.11");
        assert_eq!(config["cgroupRoot"], "/cadre-cluster/node-1");
        assert_eq!(config["authentication"]["anonymous"]["enabled"], false);
    }

    #[test]
    fn names_outside_are_answered_only_with_egress() {
        assert!(!corefile(&layout(), false).contains("forward"));
        assert!(corefile(&layout(), true).contains("  forward . /etc/resolv.conf\n}\n"));
    }
}
