//! The hand that kills: processes by `kill -9` in their containers, PostgreSQL also in order, a node by its power.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::dice::Dice;
use super::plan::Kill;
use super::release::Release;
use crate::story::kubernetes::Kubernetes;
use crate::story::node::Container;
use crate::story::{LIMIT, Story, condition};
use crate::wait;

/// Longest time until a node's loss has had its consequences.
const LOSS: Duration = Duration::from_secs(180);
/// From this restart on kubelet waits 20 s and more before the next: the pod is replaced instead, as by somebody who
/// looks after it.
const PATIENT: u64 = 2;

/// Kills what belongs to a release.
#[derive(Debug, Clone, Copy)]
pub struct Hand<'a> {
    story: &'a Story,
    release: &'a Release<'a>,
}

/// Where pods are found.
struct Place<'a> {
    namespace: &'a str,
    label: &'a str,
}

impl<'a> Hand<'a> {
    /// A hand on a release.
    #[must_use]
    pub fn new(story: &'a Story, release: &'a Release<'a>) -> Self {
        Self { story, release }
    }

    /// Kills, and says what was killed.
    ///
    /// # Errors
    /// When there is nothing of the kind to be killed in time.
    pub fn strike(&self, kill: Kill, dice: &mut Dice) -> Result<String> {
        let agents = Place { namespace: self.release.work(), label: "cadre.dev/sandbox" };
        let part = |label| Place { namespace: self.release.system(), label };
        let servers = part("app.kubernetes.io/component=api-server");
        let database = part("app.kubernetes.io/component=postgresql");
        match kill {
            Kill::Engine => self.one(&agents, &["engine"], dice),
            Kill::Tools => self.one(&agents, &["sandbox"], dice),
            Kill::Agent => self.one(&agents, &["engine", "sandbox"], dice),
            Kill::Server => self.one_and_replace(&servers, "api-server", dice),
            Kill::Servers => self.all(&servers, "api-server"),
            Kill::Operator => self.one_and_replace(&part("app.kubernetes.io/component=operator"), "operator", dice),
            Kill::Database => self.one_and_replace(&database, "postgresql", dice),
            Kill::Restart => {
                let pod = self.pick(&database, &["postgresql"], dice)?;
                self.delete(&database, name(&pod))?;
                Ok("postgresql in order".into())
            }
            Kill::Node => self.node(dice),
        }
    }

    /// The pods of a place whose containers of these names all run.
    fn running(&self, place: &Place<'_>, containers: &[&str]) -> Result<Vec<Value>> {
        let path = format!("{}?labelSelector={}", Kubernetes::path(place.namespace, "pods"), place.label);
        let list = self.story.kubernetes.get(&path)?;
        let runs = |pod: &Value| {
            let is_up = |wanted: &&str| container(pod, wanted)["state"]["running"].is_object();
            pod["metadata"]["deletionTimestamp"].is_null() && containers.iter().all(is_up)
        };
        Ok(list["items"].as_array().into_iter().flatten().filter(|pod| runs(pod)).cloned().collect())
    }

    /// One of them, once there is one.
    fn pick(&self, place: &Place<'_>, containers: &[&str], dice: &mut Dice) -> Result<Value> {
        let mut picked = None;
        wait::until(&format!("a pod with {} in {}", place.label, place.namespace), LIMIT, "kubectl get pods", || {
            picked = dice.choose(&self.running(place, containers)?).cloned();
            Ok(picked.is_some())
        })?;
        picked.context("no pod")
    }

    /// Kills containers of a pod. Another pod is taken when this one is just going.
    fn one(&self, place: &Place<'_>, containers: &[&str], dice: &mut Dice) -> Result<String> {
        let mut struck = String::new();
        wait::until(&format!("{containers:?} to be killed"), LIMIT, "kubectl get pods", || {
            let pod = self.pick(place, containers, dice)?;
            struck = format!("{} of {}", containers.join(" and "), name(&pod));
            Ok(containers.iter().all(|container| kill(&pod, container).is_ok()))
        })?;
        Ok(struck)
    }

    fn one_and_replace(&self, place: &Place<'_>, container: &str, dice: &mut Dice) -> Result<String> {
        let mut struck = String::new();
        wait::until(&format!("{container} to be killed"), LIMIT, "kubectl get pods", || {
            let pod = self.pick(place, &[container], dice)?;
            let done = kill(&pod, container).is_ok();
            struck = name(&pod).to_owned();
            if done {
                self.replace(place, &pod, container)?;
            }
            Ok(done)
        })?;
        Ok(struck)
    }

    fn all(&self, place: &Place<'_>, container: &str) -> Result<String> {
        let pods = self.running(place, &[container])?;
        let killed: Vec<_> = pods.iter().filter(|pod| kill(pod, container).is_ok()).collect();
        killed.iter().try_for_each(|pod| self.replace(place, pod, container))?;
        Ok(format!("{} at once", killed.iter().map(|pod| name(pod)).collect::<Vec<_>>().join(" and ")))
    }

    /// Takes a pod away whose container kubelet would let wait for long.
    fn replace(&self, place: &Place<'_>, pod: &Value, of: &str) -> Result<()> {
        if container(pod, of)["restartCount"].as_u64() < Some(PATIENT) {
            return Ok(());
        }
        // Never by force: two pods of a database would write to one volume.
        self.delete(place, name(pod))
    }

    fn delete(&self, place: &Place<'_>, pod: &str) -> Result<()> {
        let arguments = ["delete", "pod", pod, "--namespace", place.namespace, "--ignore-not-found", "--wait=false"];
        self.story.cluster.run(&arguments).map(drop)
    }

    /// Cuts a node's power until its loss has been seen and, if nothing else holds them up, its sessions have moved.
    fn node(&self, dice: &mut Dice) -> Result<String> {
        let node = *dice.choose(&["node-1", "node-2"]).context("no node")?;
        let place = Place { namespace: self.release.work(), label: "cadre.dev/sandbox" };
        let there = |place: &Place<'_>| -> Result<Vec<Value>> {
            let pods = self.running(place, &[])?;
            Ok(pods.into_iter().filter(|pod| pod["spec"]["nodeName"] == node).collect())
        };
        let database = Place { namespace: self.release.system(), label: "app.kubernetes.io/component=postgresql" };
        let (lost, has_record) = (there(&place)?, !there(&database)?.is_empty());
        let victim = Victim { story: self.story, node };
        self.story.power("kill", node)?;
        wait::until(&format!("{node} to be missed"), LOSS, "kubectl get nodes", || {
            let object = self.story.kubernetes.get(&format!("/api/v1/nodes/{node}"))?;
            Ok(condition(&object, "Ready")["status"] != "True")
        })?;
        // Without the record nothing goes on, and a pod of a StatefulSet stays where it was.
        let moved = !has_record && !lost.is_empty() && self.moved(&place, node, &lost);
        drop(victim);
        let of = if has_record { ", with the record" } else { "" };
        let then = if moved { ", sessions moved" } else { "" };
        Ok(format!("{node} with {} agents{of}{then}", lost.len()))
    }

    /// Waits until a session whose pod was lost has one elsewhere. That there is none to move is no mistake.
    fn moved(&self, place: &Place<'_>, node: &str, lost: &[Value]) -> bool {
        let sandbox = |pod: &Value| pod["metadata"]["labels"]["cadre.dev/sandbox"].clone();
        let homeless: Vec<_> = lost.iter().map(sandbox).collect();
        let is_back = |pod: &Value| pod["spec"]["nodeName"] != node && homeless.contains(&sandbox(pod));
        wait::until("a session to move", LOSS, "kubectl get sandboxes", || {
            Ok(self.running(place, &["engine"])?.iter().any(is_back))
        })
        .is_ok()
    }
}

/// A node without power; it gets it back when dropped.
struct Victim<'a> {
    story: &'a Story,
    node: &'static str,
}

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.story.power("restart", self.node) {
            eprintln!("{error:#}");
        }
    }
}

/// Kills a container of a pod that was just read. One that has gone meanwhile is not waited for.
fn kill(pod: &Value, container: &str) -> Result<()> {
    Container::of(pod, container)?.kill()
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// The status of a container; null when there is none.
fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let mut statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    statuses.find(|status| status["name"] == name).unwrap_or(&Value::Null)
}
