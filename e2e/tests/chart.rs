//! What the chart makes of its values, as Kubernetes reads it: nothing is installed.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::process::{Command, Output};

use cadre_e2e::binaries::program;
use cadre_e2e::cluster::{Cluster, Namespace};
use serde_json::Value;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/cadre");
const POSTGRESQL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/cadre/values-postgresql.yaml");

fn template(namespace: &str, values: &[&str]) -> Output {
    let mut helm = Command::new(program("helm").unwrap());
    helm.args(["template", "cadre", CHART, "--namespace", namespace]).args(values).output().unwrap()
}

/// All objects, as Kubernetes would take them.
fn objects(namespace: &Namespace, values: &[&str]) -> Vec<Value> {
    let output = template(namespace.name(), values);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), output.stdout).unwrap();
    let path = file.path().display().to_string();
    let list = Cluster::running().unwrap().run(&["apply", "--dry-run=server", "-o", "json", "-f", &path]).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    list["items"].as_array().unwrap().clone()
}

fn names(objects: &[Value], kind: &str) -> Vec<String> {
    let of_kind = objects.iter().filter(|object| object["kind"] == kind);
    of_kind.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_record_is_in_one_database() {
    let namespace = Cluster::running().unwrap().namespace("chart").unwrap();
    let plain = objects(&namespace, &[]);
    assert_eq!(names(&plain, "PersistentVolumeClaim"), ["cadre-api-data"]);
    assert_eq!(names(&plain, "StatefulSet"), Vec::<String>::new());

    let with = objects(&namespace, &["--values", POSTGRESQL]);
    assert_eq!(names(&with, "PersistentVolumeClaim"), Vec::<String>::new());
    assert_eq!(names(&with, "StatefulSet"), ["cadre-postgresql"]);
    assert!(names(&with, "NetworkPolicy").contains(&"cadre-postgresql".to_owned()));
    let server = with.iter().find(|object| object["metadata"]["name"] == "cadre-api" && object["kind"] == "Deployment");
    let container = &server.unwrap()["spec"]["template"]["spec"]["containers"][0];
    let mut variables = container["env"].as_array().unwrap().iter();
    let database = variables.find(|variable| variable["name"] == "CADRE_DATABASE").unwrap();
    assert_eq!(database["valueFrom"]["secretKeyRef"]["name"], "cadre-postgresql");

    let both = template("any", &["--values", POSTGRESQL, "--set", "apiServer.database.existingSecret=mine"]);
    assert!(!both.status.success());
    assert!(String::from_utf8_lossy(&both.stderr).contains("name two databases: choose one"));
}

#[test]
fn releases_stand_beside_each_other() {
    let cluster = Cluster::running().unwrap();
    let (one, other) = (cluster.namespace("chart").unwrap(), cluster.namespace("chart").unwrap());
    for values in [&["--set", "clusterWide=true"][..], &[]] {
        let global = |namespace: &Namespace| -> Vec<_> {
            let objects = objects(namespace, values);
            let global = objects.iter().filter(|object| object["metadata"]["namespace"].is_null());
            global.map(|object| format!("{} {}", object["kind"], object["metadata"]["name"])).collect()
        };
        let (first, second) = (global(&one), global(&other));
        assert!(first.len() >= 8, "{first:?}");
        assert!(first.iter().all(|name| !second.contains(name)), "{first:?} {second:?}");
    }
}

#[test]
fn admission_policies_are_about_the_served_namespaces() {
    let namespace = Cluster::running().unwrap().namespace("chart").unwrap();
    let objects = objects(&namespace, &["--set", "namespaces={default,kube-public}"]);
    let policies = objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy");
    let served = policies
        .map(|policy| policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"][0]["values"].clone());
    assert_eq!(
        served.collect::<Vec<_>>(),
        [serde_json::json!(["default", "kube-public"]), serde_json::json!(["default", "kube-public"])]
    );
}
