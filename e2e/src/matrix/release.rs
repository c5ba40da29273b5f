//! A Cadre of the matrix's own: two API servers and a PostgreSQL in one namespace, serving another. The installation that
//! other tests use goes on beside it.

use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cluster::Namespace;
use crate::story::{SYSTEM, Story, node};
use crate::{binaries, cache, wait};

/// API servers.
pub const REPLICAS: usize = 2;
/// Longest wait for all parts to be ready, back-off of kubelet included.
const READY: Duration = Duration::from_secs(600);
const NAME: &str = "cadre";

/// The installed release; uninstalled when dropped, unless `CADRE_MATRIX_KEEP` is set and a test has failed.
#[derive(Debug)]
pub struct Release<'a> {
    story: &'a Story,
    system: ManuallyDrop<Namespace>,
    work: ManuallyDrop<Namespace>,
}

impl<'a> Release<'a> {
    /// Installs the images of the present installation, and PostgreSQL's, which is made if it isn't there.
    ///
    /// # Errors
    /// When a part doesn't become ready.
    pub fn install(story: &'a Story) -> Result<Self> {
        let images = images(story)?;
        let namespace = |name| story.cluster.namespace(name).map(ManuallyDrop::new);
        let release = Self { story, system: namespace("matrix")?, work: namespace("matrix-work")? };
        // No pod of Cadre's needs more than the strictest standard allows.
        let label = ["label", "namespace", release.system(), "pod-security.kubernetes.io/enforce=restricted"];
        story.cluster.run(&label)?;
        let values = values(&images, release.work());
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/cadre").display().to_string();
        let arguments = ["install", NAME, &chart, "--values", "-", "--wait", "--timeout", "600s"];
        release.helm(&arguments, &values.to_string())?;
        Ok(release)
    }

    /// Namespace of the parts.
    #[must_use]
    pub fn system(&self) -> &str {
        self.system.name()
    }

    /// Namespace of agent and pods.
    #[must_use]
    pub fn work(&self) -> &str {
        self.work.name()
    }

    /// Key of the HTTP API.
    ///
    /// # Errors
    /// When the Secret is absent.
    pub fn key(&self) -> Result<String> {
        let path = "jsonpath={.data.OS_SECURITY_KEY}";
        let key = self.system.run(&["get", "secret", "cadre-api-key", "-o", path])?;
        Ok(String::from_utf8(STANDARD.decode(key.trim())?)?)
    }

    /// Waits until every part is there in full.
    ///
    /// # Errors
    /// When it isn't in time.
    pub fn ready(&self) -> Result<()> {
        let parts = [("deployments", "cadre-api", REPLICAS), ("deployments", "cadre-operator", 1)];
        let hint = format!("kubectl -n {} get pods", self.system());
        wait::until("all parts to be ready", READY, &hint, || {
            let is_ready = |(plural, name, wanted): &(&str, &str, usize)| -> Result<bool> {
                let part = self.story.kubernetes.object(self.system(), plural, name)?.unwrap_or_default();
                Ok(part["status"]["readyReplicas"].as_u64() == Some(*wanted as u64))
            };
            let database = ("statefulsets", "cadre-postgresql", 1);
            parts.iter().chain([&database]).try_fold(true, |all, part| Ok(all && is_ready(part)?))
        })
    }

    /// Takes everything away again, and waits until it is gone.
    ///
    /// # Errors
    /// When something stays.
    pub fn uninstall(self) -> Result<()> {
        let (story, names) = (self.story, [self.system().to_owned(), self.work().to_owned()]);
        drop(self);
        for name in &names {
            let get = ["get", "namespace", name, "--ignore-not-found", "-o", "name"];
            let hint = format!("kubectl get all -n {name}");
            wait::until(&format!("the namespace {name} to be gone"), READY, &hint, || {
                Ok(story.cluster.run(&get)?.is_empty())
            })?;
        }
        let left = story.cluster.run(&["get", OF_THE_CLUSTER, "-o", "name"])?;
        let left: Vec<_> = left.lines().filter(|line| names.iter().any(|name| line.ends_with(name))).collect();
        ensure!(left.is_empty(), "these objects are left: {left:?}");
        Ok(())
    }

    fn helm(&self, arguments: &[&str], input: &str) -> Result<()> {
        let mut helm = Command::new(binaries::program("helm")?);
        helm.args(["--namespace", self.system()]).args(arguments);
        helm.args(self.story.cluster.kubeconfig().map(|path| format!("--kubeconfig={}", path.display())));
        helm.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = helm.spawn().context("can't start helm")?;
        child.stdin.take().context("no input")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "helm {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}

/// Kinds of the chart's objects that are in no namespace.
const OF_THE_CLUSTER: &str =
    "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings";

impl Drop for Release<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("CADRE_MATRIX_KEEP").is_some() {
            return;
        }
        if let Err(error) = self.helm(&["uninstall", NAME, "--ignore-not-found"], "") {
            eprintln!("{error:#}");
        }
        for name in [self.system(), self.work()] {
            let _ = self.story.cluster.run(&["delete", "namespace", name, "--wait=false"]);
        }
    }
}

fn values(images: &Value, work: &str) -> Value {
    json!({
        "namespaces": [work],
        "defaultNamespace": work,
        "images": images,
        "apiServer": {"replicas": REPLICAS},
        "postgresql": {"enabled": true, "persistence": {"size": "1Gi", "storageClassName": "cadre-shared"}},
    })
}

/// The images of the present installation, and PostgreSQL's.
fn images(story: &Story) -> Result<Value> {
    let container = |deployment: &str| -> Result<Value> {
        let object = story.kubernetes.object(SYSTEM, "deployments", deployment)?.context("Cadre is not installed")?;
        Ok(object["spec"]["template"]["spec"]["containers"][0].clone())
    };
    let (server, operator) = (container("cadre-api")?, container("cadre-operator")?);
    let variable = |name: &str| {
        let mut variables = operator["env"].as_array().into_iter().flatten();
        variables.find(|variable| variable["name"] == name).map(|variable| variable["value"].clone())
    };
    Ok(json!({
        "apiServer": server["image"],
        "operator": operator["image"],
        "agent": variable("CADRE_AGENT_IMAGE"),
        "sandbox": variable("CADRE_SANDBOX_IMAGE"),
        "postgresql": postgresql()?,
    }))
}

/// Makes PostgreSQL's image where it is missing, and returns its name.
fn postgresql() -> Result<String> {
    let folder = cache::root()?.join("images");
    let archive = folder.join("postgresql.tar").display().to_string();
    node::xtask(&["images", "--only", "postgresql"])?;
    node::xtask(&["cluster", "load", &archive])?;
    let record = std::fs::read_to_string(folder.join("postgresql.made-from"))?;
    let name = record.lines().nth(1).context("the image has no name")?;
    Ok(name.to_owned())
}
