//! Command-line arguments of every program.

use std::path::PathBuf;

use super::super::layout::Layout;
use super::super::network::{API_PORT, HOST, Node, PODS, SERVICES};

/// The address of etcd: loopback only, and it asks for a certificate.
pub const ETCD: &str = "https://127.0.0.1:12379";
const ETCD_PEERS: &str = "http://127.0.0.1:12380";

/// After this silence a node counts as lost: four missed signs of life.
const NODE_GRACE: &str = "20s";

/// The address of kube-apiserver.
pub fn api_url() -> String {
    format!("https://{HOST}:{API_PORT}")
}

fn path(flag: &str, path: PathBuf) -> String {
    format!("--{flag}={}", path.display())
}

/// etcd, which makes every write durable: measured latencies are true ones.
pub fn etcd(layout: &Layout) -> Vec<String> {
    let pki = layout.pki();
    vec![
        path("data-dir", layout.etcd()),
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        format!("--listen-peer-urls={ETCD_PEERS}"),
        path("cert-file", pki.join("etcd.crt")),
        path("key-file", pki.join("etcd.key")),
        path("trusted-ca-file", pki.join("ca.crt")),
        "--client-cert-auth".into(),
        "--log-level=warn".into(),
    ]
}

/// kube-apiserver. ValidatingAdmissionPolicy and PodSecurity are on by default.
pub fn api_server(layout: &Layout) -> Vec<String> {
    let pki = layout.pki();
    let file = |flag: &str, name: &str| path(flag, pki.join(name));
    vec![
        format!("--bind-address={HOST}"),
        format!("--advertise-address={HOST}"),
        format!("--secure-port={API_PORT}"),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--etcd-servers={ETCD}"),
        file("etcd-cafile", "ca.crt"),
        file("etcd-certfile", "etcd-client.crt"),
        file("etcd-keyfile", "etcd-client.key"),
        file("client-ca-file", "ca.crt"),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("kubelet-client-certificate", "apiserver-kubelet.crt"),
        file("kubelet-client-key", "apiserver-kubelet.key"),
        file("kubelet-certificate-authority", "ca.crt"),
        // Else logs and exec look for the nodes' names in this machine's DNS.
        "--kubelet-preferred-address-types=InternalIP".into(),
        file("service-account-key-file", "sa.pub"),
        file("service-account-signing-key-file", "sa.key"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        // This machine has no route to services: webhooks and other API servers are called at their pods.
        "--enable-aggregator-routing=true".into(),
        file("requestheader-client-ca-file", "ca.crt"),
        "--requestheader-allowed-names=front-proxy".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        file("proxy-client-cert-file", "front-proxy.crt"),
        file("proxy-client-key-file", "front-proxy.key"),
    ]
}

/// kube-controller-manager.
pub fn controller_manager(layout: &Layout) -> Vec<String> {
    let pki = layout.pki();
    let mut arguments = delegating(layout, "controller-manager");
    arguments.extend([
        path("service-account-private-key-file", pki.join("sa.key")),
        path("root-ca-file", pki.join("ca.crt")),
        path("cluster-signing-cert-file", pki.join("ca.crt")),
        path("cluster-signing-key-file", pki.join("ca.key")),
        "--use-service-account-credentials=true".into(),
        format!("--cluster-cidr={PODS}"),
        format!("--service-cluster-ip-range={SERVICES}"),
        // Each node's range is fixed by its network configuration.
        "--allocate-node-cidrs=false".into(),
        format!("--node-monitor-grace-period={NODE_GRACE}"),
        "--node-monitor-period=2s".into(),
    ]);
    arguments
}

/// kube-scheduler.
pub fn scheduler(layout: &Layout) -> Vec<String> {
    delegating(layout, "scheduler")
}

/// What programs share that let kube-apiserver decide who may ask them.
fn delegating(layout: &Layout, user: &str) -> Vec<String> {
    let kubeconfig = layout.component_kubeconfig(user);
    let mut arguments: Vec<_> = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
        .map(|flag| path(flag, kubeconfig.clone()))
        .into();
    arguments.extend([format!("--bind-address={HOST}"), "--leader-elect=false".into()]);
    arguments
}

/// CoreDNS.
pub fn coredns(layout: &Layout) -> Vec<String> {
    vec!["-conf".into(), layout.corefile().display().to_string()]
}

/// The program that makes volumes.
pub fn volumes(layout: &Layout) -> Vec<String> {
    vec![path("kubeconfig", layout.component_kubeconfig("volumes")), path("root", layout.volumes())]
}

/// kubelet of a node.
pub fn kubelet(node: Node, layout: &Layout) -> Vec<String> {
    let paths = layout.node(node);
    vec![
        path("config", paths.kubelet_config()),
        path("kubeconfig", layout.component_kubeconfig(&node.name())),
        path("root-dir", paths.kubelet_root()),
        path("cert-dir", paths.root().join("pki")),
        format!("--hostname-override={}", node.name()),
        format!("--node-ip={}", node.address()),
    ]
}

/// kube-proxy of a node.
pub fn proxy(node: Node, layout: &Layout) -> Vec<String> {
    vec![
        path("kubeconfig", layout.component_kubeconfig("kube-proxy")),
        format!("--hostname-override={}", node.name()),
        format!("--cluster-cidr={PODS}"),
        "--proxy-mode=iptables".into(),
        // The table's size belongs to the whole machine, not to a node's network namespace.
        "--conntrack-max-per-core=0".into(),
    ]
}

/// kube-router of a node, which enforces NetworkPolicies and does nothing else here.
pub fn router(node: Node, layout: &Layout) -> Vec<String> {
    vec![
        path("kubeconfig", layout.component_kubeconfig("kube-router")),
        format!("--hostname-override={}", node.name()),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--run-firewall=true".into(),
        "--run-router=false".into(),
        "--run-service-proxy=false".into(),
        "--enable-cni=false".into(),
        "--health-port=0".into(),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::network::NODES;
    use super::*;

    #[test]
    fn nothing_listens_on_all_addresses() {
        let layout = Layout::new(Path::new("/c"));
        let bound = [api_server(&layout), controller_manager(&layout), scheduler(&layout)];
        for arguments in bound {
            assert!(arguments.contains(&"--bind-address=10.231.0.1".to_owned()), "{arguments:?}");
        }
        let listens: Vec<_> = etcd(&layout).into_iter().filter(|argument| argument.starts_with("--listen-")).collect();
        assert_eq!(listens.len(), 2);
        assert!(listens.iter().all(|argument| argument.contains("://127.0.0.1:")), "{listens:?}");
    }

    #[test]
    fn etcd_is_durable_and_asks_for_a_certificate() {
        let arguments = etcd(&Layout::new(Path::new("/c")));
        assert!(arguments.contains(&"--client-cert-auth".to_owned()));
        assert!(!arguments.iter().any(|argument| argument.contains("fsync")));
    }

    #[test]
    fn a_nodes_programs_use_its_own_identity() {
        let arguments = kubelet(NODES[1], &Layout::new(Path::new("/c")));
        assert!(arguments.contains(&"--kubeconfig=/c/pki/node-2.kubeconfig".to_owned()));
        assert!(arguments.contains(&"--hostname-override=node-2".to_owned()));
    }
}
