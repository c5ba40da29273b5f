//! The one-machine cluster does what a cluster does: two nodes, services, names, enforced policies, volumes.

use std::time::Duration;

use cadre_e2e::cluster::{Cluster, Namespace};
use cadre_e2e::{PROBE_IMAGE, wait};

const LIMIT: Duration = Duration::from_secs(300);

/// A pod of the probe on one node, with more of its spec.
fn pod(name: &str, node: &str, more: &str) -> String {
    format!(
        r"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  terminationGracePeriodSeconds: 1
  {more}
---
"
    )
}

fn probe(name: &str, node: &str) -> String {
    pod(name, node, &format!("containers: [{{name: probe, image: {PROBE_IMAGE}}}]"))
}

fn exec(namespace: &Namespace, pod: &str, arguments: &[&str]) -> anyhow::Result<String> {
    namespace.run(&[&["exec", pod, "--", "/probe"], arguments].concat())
}

#[test]
fn pods_of_both_nodes_find_each_other_by_name() {
    let namespace = Cluster::running().unwrap().namespace("nodes").unwrap();
    let service = "
apiVersion: v1
kind: Service
metadata: {name: far}
spec: {selector: {app: far}, ports: [{port: 80, targetPort: 8080}]}
";
    namespace.apply(&(probe("near", "node-1") + &probe("far", "node-2") + service)).unwrap();
    namespace.wait_for("condition=Ready", &["pod/near", "pod/far"]).unwrap();
    let nodes = namespace.run(&["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"]).unwrap();
    assert_eq!(nodes, "node-2 node-1", "far and near");

    let address = namespace.run(&["get", "service", "far", "-o", "jsonpath={.spec.clusterIP}"]).unwrap();
    // Names and services follow their objects within moments.
    let mut known = None;
    wait::until("the name to be known", LIMIT, "read coredns.log", || {
        known = exec(&namespace, "near", &["resolve", "far"]).ok();
        Ok(known.is_some())
    })
    .unwrap();
    assert_eq!(known, Some(address));
    wait::until("the service to answer", LIMIT, "read kube-proxy's logs", || {
        Ok(exec(&namespace, "near", &["get", "http://far"]).is_ok_and(|answer| answer == "far"))
    })
    .unwrap();
    let logs = namespace.run(&["logs", "near"]).unwrap();
    assert_eq!(logs, "");
}

#[test]
fn a_policy_that_allows_nothing_cuts_a_pod_off() {
    let namespace = Cluster::running().unwrap().namespace("policy").unwrap();
    namespace.apply(&(probe("client", "node-1") + &probe("server", "node-2"))).unwrap();
    namespace.wait_for("condition=Ready", &["pod/client", "pod/server"]).unwrap();
    let address = namespace.run(&["get", "pod", "server", "-o", "jsonpath={.status.podIP}"]).unwrap();
    let url = format!("http://{address}:8080");
    let answers = || exec(&namespace, "client", &["get", &url]).is_ok_and(|answer| answer == "server");
    wait::until("the server to answer", LIMIT, "see the pod", || Ok(answers())).unwrap();

    namespace
        .apply(
            "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing}
spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress]}
",
        )
        .unwrap();
    wait::until("the policy to be enforced", LIMIT, "read kube-router's logs", || Ok(!answers())).unwrap();
    let resolves = || exec(&namespace, "server", &["resolve", "kubernetes.default.svc.cluster.local"]).is_ok();
    wait::until("a pod without egress to reach no DNS", LIMIT, "read kube-router's logs", || Ok(!resolves())).unwrap();

    namespace.run(&["delete", "networkpolicy", "nothing"]).unwrap();
    wait::until("the policy to be gone", LIMIT, "read kube-router's logs", || Ok(answers())).unwrap();
}

fn claim(name: &str, class: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{{class}accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 16Mi}}}}}}
---
"
    )
}

fn with_volume(name: &str, node: &str, claim: &str) -> String {
    let more = format!(
        "securityContext: {{runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}}
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]
  containers: [{{name: probe, image: {PROBE_IMAGE}, volumeMounts: [{{name: data, mountPath: /data}}]}}]"
    );
    pod(name, node, &more)
}

#[test]
fn a_claim_keeps_its_data_from_one_pod_to_the_next() {
    let cluster = Cluster::running().unwrap();
    let namespace = cluster.namespace("volume").unwrap();
    namespace.apply(&(claim("data", "") + &with_volume("first", "node-2", "data"))).unwrap();
    namespace.wait_for("condition=Ready", &["pod/first"]).unwrap();
    exec(&namespace, "first", &["write", "/data/note", "kept"]).unwrap();
    namespace.run(&["delete", "pod", "first"]).unwrap();
    // The scheduler knows where the volume is: no node is asked for.
    let second = with_volume("second", "node-2", "data").replace("nodeSelector: {kubernetes.io/hostname: node-2}", "");
    namespace.apply(&second).unwrap();
    namespace.wait_for("condition=Ready", &["pod/second"]).unwrap();
    assert_eq!(exec(&namespace, "second", &["read", "/data/note"]).unwrap(), "kept");
    assert_eq!(namespace.run(&["get", "pod", "second", "-o", "jsonpath={.spec.nodeName}"]).unwrap(), "node-2");

    let volume = namespace.run(&["get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"]).unwrap();
    namespace.run(&["delete", "pod", "second"]).unwrap();
    namespace.run(&["delete", "pvc", "data"]).unwrap();
    wait::until("the volume to be gone", LIMIT, "read volumes.log", || {
        Ok(cluster.run(&["get", "pv", &volume]).is_err())
    })
    .unwrap();
}

#[test]
fn a_shared_claim_follows_its_pod_to_another_node() {
    let namespace = Cluster::running().unwrap().namespace("shared").unwrap();
    namespace
        .apply(&(claim("data", "storageClassName: cadre-shared, ") + &with_volume("first", "node-1", "data")))
        .unwrap();
    namespace.wait_for("condition=Ready", &["pod/first"]).unwrap();
    exec(&namespace, "first", &["write", "/data/note", "moved"]).unwrap();
    namespace.run(&["delete", "pod", "first"]).unwrap();
    namespace.apply(&with_volume("second", "node-2", "data")).unwrap();
    namespace.wait_for("condition=Ready", &["pod/second"]).unwrap();
    assert_eq!(exec(&namespace, "second", &["read", "/data/note"]).unwrap(), "moved");
}
