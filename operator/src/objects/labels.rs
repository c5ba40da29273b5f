//! Labels and owners of child objects. Labels of the parent are not copied: GitOps tools would adopt the children.

use std::collections::BTreeMap;

use cadre_crds::sandbox::Sandbox;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};

/// Label of agent pods, with the Sandbox's name. The namespace's network policy selects by it.
pub const SANDBOX: &str = "cadre.dev/sandbox";
/// Label of agent pods, with their incarnation.
pub const INCARNATION: &str = "cadre.dev/incarnation";
/// Label of agent pods, with the network mode in lower case.
pub const NETWORK: &str = "cadre.dev/network";
/// Label of agent pods, with the Agent's name.
pub const AGENT: &str = "cadre.dev/agent";
/// Selects what the operator made.
pub const MANAGED: &str = "app.kubernetes.io/managed-by=cadre-operator";

/// Labels of every child.
#[must_use]
pub fn common() -> BTreeMap<String, String> {
    [
        ("app.kubernetes.io/name", "cadre"),
        ("app.kubernetes.io/component", "agent"),
        ("app.kubernetes.io/part-of", "cadre"),
        ("app.kubernetes.io/managed-by", "cadre-operator"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Metadata of a child of a Sandbox.
#[must_use]
pub fn owned(sandbox: &Sandbox, name: String) -> ObjectMeta {
    let mut labels = common();
    labels.insert(SANDBOX.into(), sandbox.name_any());
    ObjectMeta {
        name: Some(name),
        namespace: sandbox.namespace(),
        labels: Some(labels),
        owner_references: Some(vec![owner(sandbox)]),
        ..ObjectMeta::default()
    }
}

/// Metadata of an object that all agent pods of a namespace share.
#[must_use]
pub fn shared(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some(common()),
        ..ObjectMeta::default()
    }
}

fn owner(sandbox: &Sandbox) -> OwnerReference {
    OwnerReference {
        api_version: Sandbox::api_version(&()).into_owned(),
        kind: Sandbox::kind(&()).into_owned(),
        name: sandbox.name_any(),
        uid: sandbox.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether a Sandbox of this UID controls the object.
#[must_use]
pub fn is_owned_by(meta: &ObjectMeta, uid: &str) -> bool {
    let owners = meta.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}
