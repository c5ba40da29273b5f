//! What must be there before an agent pod: its identity, its closed network, its volume. Usually all of it is cached and
//! nothing is asked or written.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use cadre_crds::sandbox::{NetworkMode, Persistence, Sandbox};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::caches::Caches;
use crate::context::Shared;
use crate::error::{Error, kubernetes};
use crate::objects::{labels, network_policy, service_account, volume_claim};

/// Field manager of child objects.
pub const MANAGER: &str = "cadre-operator";
/// Time in which a cache surely has what was written.
const LAG: Duration = Duration::from_secs(5);

/// Keeps them.
pub struct Prerequisites {
    shared: Arc<Shared>,
    caches: Arc<Caches>,
    /// What was written lately; locked while writing, so that a burst of Sandboxes writes once.
    written: Mutex<HashMap<String, Instant>>,
}

impl Prerequisites {
    /// For a scope.
    #[must_use]
    pub fn new(shared: Arc<Shared>, caches: Arc<Caches>) -> Self {
        Self { shared, caches, written: Mutex::default() }
    }

    /// Makes sure of all; what must be waited for, if anything.
    ///
    /// # Errors
    /// When the Kubernetes API refuses.
    pub async fn ensure(&self, sandbox: &Sandbox) -> Result<Option<&'static str>, Error> {
        let namespace = sandbox.namespace().unwrap_or_default();
        let settings = &self.shared.settings;
        let account = service_account::build(&namespace);
        let deny = network_policy::deny(&namespace, settings);
        let more = match sandbox.spec.template.network.mode {
            NetworkMode::Gateway => None,
            NetworkMode::Allowlist => Some(network_policy::allowlist(sandbox)),
            NetworkMode::Internet => Some(network_policy::internet(&namespace, settings)),
        };
        let account = self.keep(&self.caches.accounts, account, |live, wanted| {
            live.automount_service_account_token == wanted.automount_service_account_token
        });
        let deny = self.keep(&self.caches.policies, deny, same_policy);
        let more = async {
            match more {
                Some(policy) => self.keep(&self.caches.policies, policy, same_policy).await,
                None => Ok(()),
            }
        };
        let ((), (), (), volume) = futures::try_join!(account, deny, more, self.volume(sandbox))?;
        Ok(volume)
    }

    async fn keep<K>(&self, cache: &Store<K>, wanted: K, same: fn(&K, &K) -> bool) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let reference = ObjectRef::from_obj(&wanted);
        let is_kept = || cache.get(&reference).is_some_and(|live| same(&live, &wanted));
        if is_kept() {
            return Ok(());
        }
        let mut written = self.written.lock().await;
        let key = reference.to_string();
        if is_kept() || written.get(&key).is_some_and(|at| at.elapsed() < LAG) {
            return Ok(());
        }
        let api: Api<K> = Api::namespaced(self.shared.client.clone(), &wanted.namespace().unwrap_or_default());
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&wanted.name_any(), &params, &Patch::Apply(&wanted))
            .await
            .map_err(kubernetes("write what agent pods need"))?;
        written.retain(|_, at| at.elapsed() < LAG);
        written.insert(key, Instant::now());
        Ok(())
    }

    /// A claim can't be changed, so it is only created.
    async fn volume(&self, sandbox: &Sandbox) -> Result<Option<&'static str>, Error> {
        if sandbox.spec.template.workspace.persistence == Persistence::Ephemeral {
            return Ok(None);
        }
        let wanted = volume_claim::build(sandbox);
        let uid = sandbox.uid().unwrap_or_default();
        if let Some(live) = self.caches.claims.get(&ObjectRef::from_obj(&wanted)) {
            return Ok(claimed(&live, &uid));
        }
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.shared.client.clone(), &sandbox.namespace().unwrap_or_default());
        let params = kube::api::PostParams { field_manager: Some(MANAGER.into()), ..Default::default() };
        match api.create(&params, &wanted).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let live = api.get_opt(&wanted.name_any()).await.map_err(kubernetes("look at a volume claim"))?;
                Ok(live.map_or(Some("a volume claim of this name is being removed"), |live| claimed(&live, &uid)))
            }
            Err(error) => Err(kubernetes("create a volume claim")(error)),
        }
    }
}

fn claimed(claim: &PersistentVolumeClaim, uid: &str) -> Option<&'static str> {
    let ours = labels::is_owned_by(&claim.metadata, uid) && claim.metadata.deletion_timestamp.is_none();
    (!ours).then_some("a volume claim of an earlier Sandbox of this name is being removed")
}

/// Whether the rules are the same. Empty lists are left out by the Kubernetes API.
fn same_policy(live: &NetworkPolicy, wanted: &NetworkPolicy) -> bool {
    let rules = |policy: &NetworkPolicy| {
        let mut spec = serde_json::to_value(&policy.spec).unwrap_or_default();
        prune(&mut spec);
        spec
    };
    rules(live) == rules(wanted)
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(prune);
            map.retain(|_, value| !value.as_array().is_some_and(Vec::is_empty));
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_that_someone_opened_is_seen() {
        let policy = |spec: Value| serde_json::from_value::<NetworkPolicy>(json!({"spec": spec})).unwrap();
        let wanted = policy(json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []}));
        let live = policy(json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        let open = policy(json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}));
        assert!(same_policy(&live, &wanted));
        assert!(!same_policy(&open, &wanted));
    }
}
