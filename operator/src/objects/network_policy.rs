//! Network policies of agent pods: a namespace-wide deny with the way to the API server, and what a mode adds.

use cadre_crds::sandbox::{NetworkAllow, NetworkMode, Sandbox};
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::labels;
use crate::config::Settings;

/// Name of the policy that denies.
pub const DENY: &str = "cadre-agents";
/// Name of the policy of mode Internet.
pub const INTERNET: &str = "cadre-agents-internet";

/// What mode Internet never reaches: private, shared, link-local (metadata), loopback, multicast and reserved ranges.
const NOT_INTERNET_V4: [&str; 9] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
];
/// The same for IPv6, with ranges that embed IPv4 addresses. IPv4-mapped ones never are on the wire, and the Kubernetes
/// API refuses them here.
const NOT_INTERNET_V6: [&str; 5] = ["::/96", "64:ff9b::/96", "fc00::/7", "fe80::/10", "ff00::/8"];

// Server-side apply mends only the fields that it is given, so a policy names all of them: somebody's rules in one that it
// leaves out would stay.

/// Denies both ways for all agent pods of a namespace, but for the API server's worker port.
#[must_use]
pub fn deny(namespace: &str, settings: &Settings) -> NetworkPolicy {
    let exists = LabelSelectorRequirement { key: labels::SANDBOX.into(), operator: "Exists".into(), values: None };
    let pods = LabelSelector { match_expressions: Some(vec![exists]), match_labels: None };
    let api_server = NetworkPolicyPeer {
        namespace_selector: Some(matching(&[("kubernetes.io/metadata.name", &settings.namespace)])),
        pod_selector: Some(LabelSelector { match_labels: Some(settings.api_labels()), match_expressions: None }),
        ip_block: None,
    };
    let way = egress(vec![api_server], vec![port("TCP", settings.worker_pod_port)]);
    NetworkPolicy {
        metadata: labels::shared(namespace, DENY),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            egress: Some(vec![way]),
            ingress: Some(Vec::new()),
        }),
    }
}

/// What mode Internet adds, for all agent pods of a namespace that have it.
#[must_use]
pub fn internet(namespace: &str, settings: &Settings) -> NetworkPolicy {
    let (v4, v6): (Vec<&IpNet>, Vec<&IpNet>) =
        settings.cluster_cidrs.iter().partition(|net| matches!(net, IpNet::V4(_)));
    let dns = NetworkPolicyPeer {
        namespace_selector: Some(matching(&[("kubernetes.io/metadata.name", "kube-system")])),
        pod_selector: Some(matching(&[("k8s-app", "kube-dns")])),
        ip_block: None,
    };
    let rules = vec![
        egress(
            vec![block("0.0.0.0/0", except(&NOT_INTERNET_V4, &v4)), block("::/0", except(&NOT_INTERNET_V6, &v6))],
            vec![],
        ),
        egress(vec![dns], vec![port("UDP", 53), port("TCP", 53)]),
    ];
    additional(labels::shared(namespace, INTERNET), &[(labels::NETWORK, "internet")], rules)
}

/// What mode Allowlist adds, for one Sandbox. It stays as long as the Sandbox, so it selects pods of that mode only: one that was
/// made after a change to another mode stays closed.
#[must_use]
pub fn allowlist(sandbox: &Sandbox) -> NetworkPolicy {
    let rules = sandbox.spec.template.network.allow.iter().map(allowed).collect();
    let name = sandbox.name_any();
    additional(labels::owned(sandbox, name.clone()), &[(labels::SANDBOX, &name), (labels::NETWORK, "allowlist")], rules)
}

fn allowed(allow: &NetworkAllow) -> NetworkPolicyEgressRule {
    egress(vec![block(&allow.cidr, vec![])], allow.ports.iter().map(|number| port("TCP", *number)).collect())
}

/// The label's value of a mode.
#[must_use]
pub fn mode_label(mode: NetworkMode) -> &'static str {
    match mode {
        NetworkMode::Gateway => "gateway",
        NetworkMode::Allowlist => "allowlist",
        NetworkMode::Internet => "internet",
    }
}

fn additional(
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    pods: &[(&str, &str)],
    egress: Vec<NetworkPolicyEgressRule>,
) -> NetworkPolicy {
    NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(matching(pods)),
            policy_types: Some(vec!["Egress".into()]),
            egress: Some(egress),
            ingress: Some(Vec::new()),
        }),
    }
}

/// Exceptions of a block. One that lies inside another would be refused by some network plugins, so it is left out.
fn except(fixed: &[&str], cluster: &[&IpNet]) -> Vec<String> {
    let fixed = fixed.iter().filter_map(|net| net.parse::<IpNet>().ok());
    let all: Vec<IpNet> = fixed.chain(cluster.iter().map(|net| net.trunc())).collect();
    let mut wide: Vec<IpNet> = Vec::new();
    for net in &all {
        let inside_another = all.iter().any(|other| other != net && other.contains(net));
        if !inside_another && !wide.contains(net) {
            wide.push(*net);
        }
    }
    wide.iter().map(ToString::to_string).collect()
}

fn egress(to: Vec<NetworkPolicyPeer>, ports: Vec<NetworkPolicyPort>) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule { to: Some(to), ports: (!ports.is_empty()).then_some(ports) }
}

fn block(cidr: &str, except: Vec<String>) -> NetworkPolicyPeer {
    let except = (!except.is_empty()).then_some(except);
    NetworkPolicyPeer { ip_block: Some(IPBlock { cidr: cidr.to_owned(), except }), ..NetworkPolicyPeer::default() }
}

fn port(protocol: &str, number: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(number.into())),
        end_port: None,
    }
}

fn matching(labels: &[(&str, &str)]) -> LabelSelector {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_never_nest() {
        let pods: IpNet = "10.244.0.0/16".parse().unwrap();
        let public: IpNet = "203.0.113.7/24".parse().unwrap();
        let except = except(&NOT_INTERNET_V4, &[&pods, &public, &public]);
        assert!(except.contains(&"169.254.0.0/16".to_owned()), "metadata addresses lie in the link-local range");
        assert!(except.contains(&"203.0.113.0/24".to_owned()));
        assert!(!except.contains(&"10.244.0.0/16".to_owned()), "10.0.0.0/8 has it");
        assert_eq!(except.iter().filter(|net| *net == "203.0.113.0/24").count(), 1);
    }

    #[test]
    fn the_fixed_ranges_are_ranges() {
        for net in NOT_INTERNET_V4.iter().chain(&NOT_INTERNET_V6) {
            assert!(net.parse::<IpNet>().is_ok(), "{net}");
        }
    }
}
