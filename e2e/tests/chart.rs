//! What the chart makes of its values, as Kubernetes reads it: nothing is installed. And what the accounts and roles of the
//! installed one may do.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::process::{Command, Output};

use cadre_e2e::binaries::program;
use cadre_e2e::cluster::{Cluster, Namespace};
use cadre_e2e::story::{NAMESPACE, SYSTEM};
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

/// Whether somebody may do something, such as `create pods`, in a namespace.
fn may(who: &str, what: &str, namespace: &str) -> bool {
    let who = format!("--as={who}");
    let mut arguments = vec!["auth", "can-i", "--namespace", namespace, &who];
    arguments.extend(what.split(' '));
    let output = Cluster::running().unwrap().kubectl(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(["yes", "no"].contains(&&*said), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    said == "yes"
}

/// The account of a part of Cadre.
fn account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

#[test]
fn core_objects_are_written_by_the_operator_only() {
    let api = account(SYSTEM, "cadre-api");
    for allowed in ["create sandboxes.cadre.dev", "delete sandboxes.cadre.dev", "get secrets", "watch agents.cadre.dev"]
    {
        assert!(may(&api, allowed, NAMESPACE), "{allowed}");
    }
    let writes = ["create", "update", "patch", "delete", "deletecollection"];
    let core = [
        "pods",
        "pods --subresource=exec",
        "persistentvolumeclaims",
        "serviceaccounts",
        "serviceaccounts --subresource=token",
        "secrets",
        "configmaps",
        "events",
        "networkpolicies.networking.k8s.io",
        "deployments.apps",
        "roles.rbac.authorization.k8s.io",
        "rolebindings.rbac.authorization.k8s.io",
        "models.cadre.dev",
        "agents.cadre.dev",
        "runs.cadre.dev",
        "models.cadre.dev --subresource=status",
        "agents.cadre.dev --subresource=status",
        "runs.cadre.dev --subresource=status",
        "sandboxes.cadre.dev --subresource=status",
    ];
    for (verb, resource) in writes.iter().flat_map(|verb| core.map(|resource| (verb, resource))) {
        assert!(!may(&api, &format!("{verb} {resource}"), NAMESPACE), "{verb} {resource}");
    }
    for read in ["list secrets", "watch secrets", "get pods", "get runs.cadre.dev", "list runs.cadre.dev"] {
        assert!(!may(&api, read, NAMESPACE), "{read}");
    }
    for elsewhere in ["get secrets", "create sandboxes.cadre.dev", "list agents.cadre.dev"] {
        assert!(!may(&api, elsewhere, "kube-system"), "{elsewhere} in a namespace that is not served");
    }
}

#[test]
fn the_operator_reads_no_secret_and_writes_nobodys_spec() {
    let operator = account(SYSTEM, "cadre-operator");
    for allowed in [
        "create pods",
        "delete pods",
        "create persistentvolumeclaims",
        "patch networkpolicies.networking.k8s.io",
        "patch serviceaccounts",
        "delete runs.cadre.dev",
        "patch sandboxes.cadre.dev --subresource=status",
        "update sandboxes.cadre.dev --subresource=finalizers",
    ] {
        assert!(may(&operator, allowed, NAMESPACE), "{allowed}");
    }
    for verb in ["get", "list", "watch", "create", "update", "patch", "delete"] {
        assert!(!may(&operator, &format!("{verb} secrets"), NAMESPACE), "{verb} secrets");
        assert!(!may(&operator, &format!("{verb} configmaps"), NAMESPACE), "{verb} configmaps");
    }
    for kind in ["models", "agents", "runs", "sandboxes"] {
        for verb in ["create", "update", "patch"] {
            assert!(!may(&operator, &format!("{verb} {kind}.cadre.dev"), NAMESPACE), "{verb} {kind}");
        }
    }
    for denied in [
        "patch pods",
        "update pods",
        "create pods --subresource=exec",
        "create pods --subresource=ephemeralcontainers",
        "delete persistentvolumeclaims",
        "delete networkpolicies.networking.k8s.io",
        "delete serviceaccounts",
        "create serviceaccounts --subresource=token",
        "create roles.rbac.authorization.k8s.io",
        "create rolebindings.rbac.authorization.k8s.io",
        "delete sandboxes.cadre.dev",
        "impersonate users",
    ] {
        assert!(!may(&operator, denied, NAMESPACE), "{denied}");
    }
    for elsewhere in ["create pods", "list pods", "patch networkpolicies.networking.k8s.io"] {
        assert!(!may(&operator, elsewhere, "kube-system"), "{elsewhere} in a namespace that is not served");
    }
}

#[test]
fn the_account_of_agent_pods_may_do_nothing() {
    let agent = account(NAMESPACE, "cadre-agent");
    for denied in ["get pods", "get secrets", "get sandboxes.cadre.dev", "create pods", "list runs.cadre.dev"] {
        assert!(!may(&agent, denied, NAMESPACE), "{denied}");
    }
}

#[test]
fn who_may_view_a_namespace_sees_no_runs() {
    let namespace = Cluster::running().unwrap().namespace("chart").unwrap();
    for role in ["view", "edit"] {
        let (clusterrole, user) = (format!("--clusterrole={role}"), format!("--user={role}er"));
        namespace.run(&["create", "rolebinding", role, &clusterrole, &user]).unwrap();
    }
    for verb in ["get", "list", "watch"] {
        for kind in ["models", "agents", "sandboxes"] {
            assert!(may("viewer", &format!("{verb} {kind}.cadre.dev"), namespace.name()), "{verb} {kind}");
        }
        assert!(!may("viewer", &format!("{verb} runs.cadre.dev"), namespace.name()), "{verb} runs");
        assert!(may("editer", &format!("{verb} runs.cadre.dev"), namespace.name()), "{verb} runs");
    }
    for kind in ["models", "agents", "runs", "sandboxes"] {
        assert!(!may("viewer", &format!("create {kind}.cadre.dev"), namespace.name()), "{kind}");
        assert!(!may("editer", &format!("patch {kind}.cadre.dev --subresource=status"), namespace.name()), "{kind}");
    }
}
