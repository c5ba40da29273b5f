//! What must be there before an agent pod: its identity, its closed network, its volume. Usually all of it is cached and
//! nothing is asked or written.

use std::fmt::Debug;
use std::sync::Arc;

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

use crate::caches::Caches;
use crate::context::Shared;
use crate::error::{Error, kubernetes};
use crate::objects::{labels, network_policy, service_account, volume_claim};

/// Field manager of child objects.
pub const MANAGER: &str = "cadre-operator";
/// Keeps them.
pub struct Prerequisites {
    shared: Arc<Shared>,
    caches: Arc<Caches>,
    /// Locked while writing, so that a burst of Sandboxes writes once.
    writing: Mutex<()>,
}

impl Prerequisites {
    /// For a scope.
    #[must_use]
    pub fn new(shared: Arc<Shared>, caches: Arc<Caches>) -> Self {
        Self { shared, caches, writing: Mutex::default() }
    }

    /// Makes sure of all that a new pod needs; what must be waited for, if anything.
    ///
    /// # Errors
    /// When the Kubernetes API refuses.
    pub async fn ensure(&self, sandbox: &Sandbox) -> Result<Option<&'static str>, Error> {
        let ((), (), volume) = futures::try_join!(self.closed(sandbox), self.opened(sandbox), self.volume(sandbox))?;
        Ok(volume)
    }

    /// Keeps agent pods of the namespace without rights and closed, whatever else a Sandbox asks for.
    ///
    /// # Errors
    /// When the Kubernetes API refuses.
    pub async fn closed(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let namespace = sandbox.namespace().unwrap_or_default();
        let account = self.keep(&self.caches.accounts, service_account::build(&namespace), |live, wanted| {
            live.automount_service_account_token == wanted.automount_service_account_token
        });
        let deny = network_policy::deny(&namespace, &self.shared.settings);
        let deny = self.keep(&self.caches.policies, deny, same_policy);
        futures::try_join!(account, deny).map(drop)
    }

    /// Keeps what the Sandbox's mode adds.
    ///
    /// # Errors
    /// When the Kubernetes API refuses.
    pub async fn opened(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let policy = match sandbox.spec.template.network.mode {
            NetworkMode::Gateway => return Ok(()),
            NetworkMode::Allowlist => network_policy::allowlist(sandbox),
            NetworkMode::Internet => {
                network_policy::internet(&sandbox.namespace().unwrap_or_default(), &self.shared.settings)
            }
        };
        self.keep(&self.caches.policies, policy, same_policy).await
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
        let _one_at_a_time = self.writing.lock().await;
        let written = &self.caches.written;
        if is_kept() || written.is_on_its_way(&wanted) {
            return Ok(());
        }
        written.begin(&wanted);
        let api: Api<K> = Api::namespaced(self.shared.client.clone(), &wanted.namespace().unwrap_or_default());
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(&wanted.name_any(), &params, &Patch::Apply(&wanted)).await;
        applied.map(drop).map_err(|error| {
            written.seen(&wanted);
            kubernetes("write what agent pods need")(error)
        })
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
