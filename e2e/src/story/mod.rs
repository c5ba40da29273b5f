//! What a test of the installed product needs: objects of its own, a client of each API, a hand on the nodes.
//!
//! Tests stand beside each other on one cluster, so every object has a name of its own, and goes with its story.
//! Everything here blocks and needs nothing but kubectl: this library is linked by `xtask` too.

pub mod api;
pub mod follow;
pub mod forward;
pub mod http;
pub mod kubernetes;
pub mod node;
pub mod objects;
pub mod search;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use self::api::{Api, Started};
use self::kubernetes::Kubernetes;
use crate::cluster::Cluster;
use crate::{unique, wait};

/// Namespace of operator and API server.
pub const SYSTEM: &str = "cadre-system";
/// Namespace that is served, in which stories happen.
pub const NAMESPACE: &str = "default";
/// Longest wait for what takes seconds when nothing is wrong, and much longer on a machine that is busy.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Stories of one process take turns: they count requests and kill what others use.
static TURN: Mutex<()> = Mutex::new(());

/// A story: its objects are deleted when it ends.
#[derive(Debug)]
pub struct Story {
    /// The cluster.
    pub cluster: Cluster,
    /// Kubernetes.
    pub kubernetes: Kubernetes,
    /// Cadre's HTTP API.
    pub api: Api,
    suffix: String,
    made: Mutex<Vec<(String, String)>>,
    _turn: MutexGuard<'static, ()>,
}

impl Story {
    /// Begins when Cadre is ready.
    ///
    /// # Errors
    /// When there is no cluster, or no Cadre on it.
    pub fn begin() -> Result<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Cluster::running()?;
        let kubernetes = Kubernetes::connect(&cluster)?;
        for deployment in ["cadre-api", "cadre-operator"] {
            kubernetes.wait(SYSTEM, "deployments", deployment, "to be available", |deployment| {
                deployment["status"]["availableReplicas"].as_u64() >= Some(1)
            })?;
        }
        let api = Api::new(&cluster)?;
        Ok(Self { cluster, kubernetes, api, suffix: unique::suffix(), made: Mutex::default(), _turn: turn })
    }

    /// A name that no other story has, or had before: the record keeps what stories leave.
    #[must_use]
    pub fn name(&self, base: &str) -> String {
        format!("e2e-{base}-{}", self.suffix)
    }

    /// Applies an object in the stories' namespace, as its author would.
    ///
    /// # Errors
    /// When it is refused: with Kubernetes' own message.
    pub fn apply(&self, object: &Value) -> Result<()> {
        self.kubernetes.apply(NAMESPACE, object)?;
        let word = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let named = (word("/kind").to_lowercase(), word("/metadata/name"));
        if !made.contains(&named) {
            made.push(named);
        }
        Ok(())
    }

    /// Applies several.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn apply_all(&self, objects: &[Value]) -> Result<()> {
        objects.iter().try_for_each(|object| self.apply(object))
    }

    /// Waits for a condition to be true or false, and returns the object.
    ///
    /// # Errors
    /// When it doesn't become so: with the object's conditions.
    pub fn condition(&self, plural: &str, name: &str, kind: &str, wanted: &str) -> Result<Value> {
        let what = format!("to have {kind}={wanted}");
        self.kubernetes.wait(NAMESPACE, plural, name, &what, |object| condition(object, kind)["status"] == wanted)
    }

    /// Waits until an agent can run: its object says so, and the API server, which watches for itself, knows of it.
    ///
    /// # Errors
    /// When it doesn't become so in time.
    pub fn ready(&self, agent: &str) -> Result<Value> {
        let object = self.condition("agents", agent, "Ready", "True")?;
        self.api.knows(agent, true)?;
        Ok(object)
    }

    /// Waits until a Run object names its run.
    ///
    /// # Errors
    /// When it isn't submitted in time.
    pub fn started(&self, run: &str) -> Result<Started> {
        let is_submitted = |object: &Value| object["status"]["runId"].is_string();
        let object = self.kubernetes.wait(NAMESPACE, "runs", run, "to be submitted", is_submitted)?;
        let word = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let [agent, run, session] = ["/spec/target/name", "/status/runId", "/status/sessionId"].map(word);
        Ok(Started { agent, run, session })
    }

    /// Waits until a Run object has ended, in whatever way.
    ///
    /// # Errors
    /// When it doesn't end in time.
    pub fn finished(&self, run: &str) -> Result<Value> {
        self.condition("runs", run, "Finished", "True")
    }

    /// The Sandbox of an agent that has one session, once its pod runs.
    ///
    /// # Errors
    /// When there is none in time.
    pub fn sandbox(&self, agent: &str) -> Result<Value> {
        let path =
            format!("/apis/cadre.dev/v1alpha1/namespaces/{NAMESPACE}/sandboxes?labelSelector=cadre.dev/agent={agent}");
        let mut found = None;
        wait::until(&format!("the sandbox of {agent}"), LIMIT, "kubectl describe sandboxes", || {
            let list = self.kubernetes.get(&path)?;
            found = list["items"].as_array().and_then(|items| items.first()).cloned();
            Ok(found.as_ref().is_some_and(|sandbox| sandbox["status"]["phase"] == "Running"))
        })?;
        found.context("no sandbox")
    }

    /// Name of the pod of such a Sandbox.
    ///
    /// # Errors
    /// As [`Self::sandbox`].
    pub fn pod(&self, agent: &str) -> Result<String> {
        let sandbox = self.sandbox(agent)?;
        Ok(sandbox["status"]["podName"].as_str().context("a running sandbox without a pod")?.to_owned())
    }

    /// Name of the present pod of a Deployment of Cadre's.
    ///
    /// # Errors
    /// When none runs in time.
    pub fn system_pod(&self, component: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{SYSTEM}/pods?labelSelector=app.kubernetes.io/component={component}");
        let mut name = None;
        wait::until(&format!("a pod of {component}"), LIMIT, "kubectl -n cadre-system get pods", || {
            let list = self.kubernetes.get(&path)?;
            let mut pods = list["items"].as_array().into_iter().flatten();
            let pod = pods.find(|pod| pod["metadata"]["deletionTimestamp"].is_null() && is_ready(pod));
            name = pod.and_then(|pod| pod["metadata"]["name"].as_str()).map(str::to_owned);
            Ok(name.is_some())
        })?;
        name.context("no pod")
    }

    /// Reasons of the events about an object, oldest first, once the last of them is there.
    ///
    /// # Errors
    /// When it doesn't come in time.
    pub fn events(&self, object: &Value, last: &str) -> Result<Vec<String>> {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.uid={uid}");
        let mut reasons = Vec::new();
        wait::until(&format!("the event {last}"), LIMIT, "kubectl describe tells", || {
            let list = self.kubernetes.get(&path)?;
            let events = list["items"].as_array().into_iter().flatten();
            let word = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let mut events: Vec<_> = events.map(|event| (word(event, "eventTime"), word(event, "reason"))).collect();
            events.sort();
            reasons = events.into_iter().map(|(_, reason)| reason).collect();
            Ok(reasons.iter().any(|reason| reason == last))
        })?;
        Ok(reasons)
    }
}

/// A condition of an object; null when it has none of that type.
#[must_use]
pub fn condition(object: &Value, kind: &str) -> Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// Whether a pod has the condition Ready.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

impl Drop for Story {
    fn drop(&mut self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        let delete = json!({"propagationPolicy": "Background"});
        for (kind, name) in made.iter().rev() {
            if kind == "agent" {
                let label = format!("cadre.dev/agent={name}");
                let sandboxes = ["delete", "sandboxes", "--namespace", NAMESPACE, "-l", &label, "--wait=false"];
                let _ = self.cluster.run(&sandboxes);
            }
            let _ = self.kubernetes.delete(NAMESPACE, &format!("{kind}s"), name, &delete);
        }
    }
}
