//! The cluster's addresses and names on this machine.
//!
//! The ranges lie apart from the defaults of Docker, Podman, kind, minikube and common home networks.

use std::fmt;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};

/// The bridge that joins this machine (the control plane) and the nodes.
pub const BRIDGE: &str = "cadre0";
/// The control plane's address on the bridge.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 231, 0, 1);
/// The port of kube-apiserver.
pub const API_PORT: u16 = 6443;
/// The network on the bridge.
pub const BRIDGE_NETWORK: Network = Network { address: Ipv4Addr::new(10, 231, 0, 0), prefix: 24 };
/// All pods; every node has a part of it.
pub const PODS: Network = Network { address: Ipv4Addr::new(10, 232, 0, 0), prefix: 16 };
/// All services.
pub const SERVICES: Network = Network { address: Ipv4Addr::new(10, 233, 0, 0), prefix: 16 };
/// The service `kubernetes`, which is the first address of the range.
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 233, 0, 1);
/// The service `kube-dns`.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 233, 0, 10);

/// The cluster's nodes.
pub const NODES: [Node; 2] = [Node { number: 1 }, Node { number: 2 }];

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its first address.
    pub address: Ipv4Addr,
    /// How many leading bits all its addresses share.
    pub prefix: u8,
}

impl Network {
    /// Reads `10.0.0.0/8` or a single address.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
        Some(Self { address: address.parse().ok()?, prefix })
    }

    /// Whether an address is in both.
    pub fn overlaps(self, other: Self) -> bool {
        let shared = self.prefix.min(other.prefix);
        let mask = u32::MAX.checked_shl(32 - u32::from(shared)).unwrap_or(0);
        self.address.to_bits() & mask == other.address.to_bits() & mask
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

/// A node: a network namespace with a kubelet, a containerd and what belongs to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    number: u8,
}

impl Node {
    /// The name of its Node object.
    pub fn name(self) -> String {
        format!("node-{}", self.number)
    }

    /// Its address on the bridge.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 231, 0, 10 + self.number)
    }

    /// The addresses of its pods.
    pub fn pods(self) -> Network {
        Network { address: Ipv4Addr::new(10, 232, self.number, 0), prefix: 24 }
    }

    /// Its network namespace.
    pub fn namespace(self) -> String {
        format!("cadre-node-{}", self.number)
    }

    /// The host's end of its cable to the bridge.
    pub fn link(self) -> String {
        format!("cadre-veth{}", self.number)
    }

    /// The other nodes.
    pub fn others(self) -> impl Iterator<Item = Self> {
        NODES.into_iter().filter(move |node| *node != self)
    }
}

/// The node of a name.
///
/// # Errors
/// When there is no such node; the message lists those that exist.
pub fn node(name: &str) -> Result<Node> {
    let known = || NODES.map(Node::name).join(", ");
    NODES
        .into_iter()
        .find(|node| node.name() == name)
        .with_context(|| format!("no node is called {name}: there are {}", known()))
}

/// The first route of this machine that the cluster's networks would collide with, from `ip -4 route show` without our own links.
pub fn conflict(routes: &str) -> Option<(Network, &str)> {
    let lines = routes.lines().filter(|line| !line.contains(&format!("dev {BRIDGE}")));
    for line in lines {
        let Some(route) = line.split_whitespace().next().and_then(Network::parse) else { continue };
        let ours = [BRIDGE_NETWORK, PODS, SERVICES];
        // A wide route, such as a VPN's 10.0.0.0/8, only gets a more specific exception from us.
        if let Some(network) = ours.into_iter().find(|ours| route.prefix >= ours.prefix && ours.overlaps(route)) {
            return Some((network, line));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_overlap_when_one_holds_the_other() {
        let cases = [
            ("10.232.0.0/16", "10.232.7.0/24", true),
            ("10.232.7.0/24", "10.232.0.0/16", true),
            ("10.232.0.0/16", "10.233.0.0/16", false),
            ("0.0.0.0/0", "10.233.0.0/16", true),
            ("10.231.0.1", "10.231.0.0/24", true),
        ];
        for (left, right, expected) in cases {
            let overlaps = Network::parse(left).unwrap().overlaps(Network::parse(right).unwrap());
            assert_eq!(overlaps, expected, "{left} and {right}");
        }
    }

    #[test]
    fn only_another_link_in_our_ranges_is_a_conflict() {
        let fine = "default via 192.168.1.1 dev eth0\n10.0.0.0/8 dev tun0\n10.231.0.0/24 dev cadre0 proto kernel\n10.232.1.0/24 via 10.231.0.11 dev cadre0\nunreachable 10.232.2.0/24\n";
        assert_eq!(conflict(fine), None);
        let line = "10.232.5.0/24 dev virbr7 proto kernel scope link";
        assert_eq!(conflict(&format!("{fine}{line}\n")), Some((PODS, line)));
    }

    #[test]
    fn nodes_are_found_by_name() {
        assert_eq!(node("node-2").unwrap().pods().to_string(), "10.232.2.0/24");
        assert_eq!(node("node-3").unwrap_err().to_string(), "no node is called node-3: there are node-1, node-2");
    }
}
