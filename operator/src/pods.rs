//! The pods of Sandboxes, by Sandbox. Filled by the watch, and at once by what the operator itself creates.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tokio_util::sync::CancellationToken;

use crate::feed::state::Name;
use crate::objects::labels;
use crate::objects::pod::TEMPLATE;

/// Deleted pods that are remembered, so that a late answer to a creation can't bring one back.
const REMEMBERED: usize = 1024;

/// Pods by the Sandbox that their label names.
#[derive(Debug, Default)]
pub struct Pods {
    inner: Mutex<Inner>,
    ready: CancellationToken,
}

#[derive(Debug, Default)]
struct Inner {
    pods: HashMap<Name, BTreeMap<String, Arc<Pod>>>,
    gone: VecDeque<String>,
    /// Pods of a list that is not yet complete.
    listed: Option<HashSet<String>>,
}

impl Pods {
    /// A Sandbox's pods, by name.
    #[must_use]
    pub fn of(&self, sandbox: &Name) -> BTreeMap<String, Arc<Pod>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).pods.get(sandbox).cloned().unwrap_or_default()
    }

    /// Waits for the first complete list.
    pub async fn wait_until_ready(&self) {
        self.ready.cancelled().await;
    }

    /// Adds a pod that was just created, unless the watch knows better.
    pub fn created(&self, pod: Pod) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = pod.uid().unwrap_or_default();
        if inner.gone.contains(&uid) {
            return;
        }
        if let Some(listed) = &mut inner.listed {
            listed.insert(uid);
        }
        if let Some(sandbox) = sandbox_of(&pod) {
            inner.pods.entry(sandbox).or_default().entry(pod.name_any()).or_insert_with(|| Arc::new(pod));
        }
    }

    /// Takes an event of the watch; the Sandboxes that it concerns.
    pub fn apply(&self, event: Event<Pod>) -> Vec<Name> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => {
                inner.listed = Some(HashSet::new());
                Vec::new()
            }
            Event::InitApply(pod) => {
                if let Some(listed) = &mut inner.listed {
                    listed.insert(pod.uid().unwrap_or_default());
                }
                inner.put(pod).into_iter().collect()
            }
            Event::InitDone => {
                self.ready.cancel();
                inner.sweep()
            }
            Event::Apply(pod) => inner.put(pod).into_iter().collect(),
            Event::Delete(pod) => inner.remove(&pod).into_iter().collect(),
        }
    }
}

impl Inner {
    fn put(&mut self, pod: Pod) -> Option<Name> {
        let sandbox = sandbox_of(&pod)?;
        self.pods.entry(sandbox.clone()).or_default().insert(pod.name_any(), Arc::new(pod));
        Some(sandbox)
    }

    fn remove(&mut self, pod: &Pod) -> Option<Name> {
        let sandbox = sandbox_of(pod)?;
        let uid = pod.uid().unwrap_or_default();
        if let Some(pods) = self.pods.get_mut(&sandbox) {
            pods.retain(|_, known| known.uid().as_ref() != Some(&uid));
            if pods.is_empty() {
                self.pods.remove(&sandbox);
            }
        }
        self.gone.push_back(uid);
        if self.gone.len() > REMEMBERED {
            self.gone.pop_front();
        }
        Some(sandbox)
    }

    /// Removes what a complete list did not have.
    fn sweep(&mut self) -> Vec<Name> {
        let listed = self.listed.take().unwrap_or_default();
        let known = self.pods.values().flat_map(BTreeMap::values);
        let lost: Vec<_> = known.filter(|pod| !listed.contains(&pod.uid().unwrap_or_default())).cloned().collect();
        lost.iter().filter_map(|pod| self.remove(pod)).collect()
    }
}

fn sandbox_of(pod: &Pod) -> Option<Name> {
    Some(Name::new(&pod.namespace()?, pod.labels().get(labels::SANDBOX)?))
}

/// Keeps what is read: a pod's spec and managed fields are most of its size.
pub fn strip(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    let annotations = pod.metadata.annotations.take().unwrap_or_default();
    pod.metadata.annotations = Some(annotations.into_iter().filter(|(name, _)| name == TEMPLATE).collect());
    if let Some(spec) = &mut pod.spec {
        let node_name = spec.node_name.take();
        *spec = k8s_openapi::api::core::v1::PodSpec { node_name, ..Default::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some("team".into());
        pod.metadata.uid = Some(uid.into());
        pod.metadata.labels = Some([(labels::SANDBOX.to_owned(), "box".to_owned())].into());
        pod
    }

    fn names(pods: &Pods) -> Vec<String> {
        pods.of(&Name::new("team", "box")).into_keys().collect()
    }

    #[test]
    fn a_late_answer_brings_no_pod_back() {
        let pods = Pods::default();
        pods.apply(Event::Apply(pod("box-0", "u")));
        pods.apply(Event::Delete(pod("box-0", "u")));
        pods.created(pod("box-0", "u"));
        assert!(names(&pods).is_empty());
    }

    #[test]
    fn a_deletion_does_not_remove_a_successor_of_the_same_name() {
        let pods = Pods::default();
        pods.created(pod("box-0", "second"));
        pods.apply(Event::Delete(pod("box-0", "first")));
        assert_eq!(names(&pods), ["box-0"]);
    }

    #[test]
    fn a_new_list_removes_what_it_lacks_but_not_what_was_created_meanwhile() {
        let pods = Pods::default();
        pods.apply(Event::Apply(pod("box-0", "a")));
        pods.apply(Event::Init);
        pods.created(pod("box-1", "b"));
        assert_eq!(pods.apply(Event::InitDone), [Name::new("team", "box")]);
        assert_eq!(names(&pods), ["box-1"]);
    }
}
