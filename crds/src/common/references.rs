//! References to other objects, in the same namespace.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// An object in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectRef {
    /// `metadata.name` of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A key of a Secret in the same namespace. The Secret must carry the label `cadre.dev/credential: "true"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRef {
    /// `metadata.name` of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in its `data`.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A name with a value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NameValue {
    /// Name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Value.
    #[schemars(length(max = 4096))]
    pub value: String,
}
