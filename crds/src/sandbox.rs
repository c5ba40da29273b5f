//! Sandbox: the pod of a session.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::references::{NameValue, ObjectRef};
use crate::common::schema;

/// The pod of a session: an engine, and a container in which tools run. The API server makes Sandboxes for sessions; one
/// made by hand has no session and is never given one.
///
/// ```yaml
/// apiVersion: cadre.dev/v1alpha1
/// kind: Sandbox
/// metadata: {name: scratch}
/// spec:
///   template: {workspace: {size: 2Gi}}
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "cadre.dev",
    version = "v1alpha1",
    kind = "Sandbox",
    plural = "sandboxes",
    namespaced,
    status = "SandboxStatus",
    shortname = "sbx",
    category = "cadre",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Agent","type":"string","jsonPath":".spec.agentRef.name"}"#,
    printcolumn = r#"{"name":"Pod","type":"string","jsonPath":".status.podName"}"#,
    printcolumn = r#"{"name":"Node","type":"string","priority":1,"jsonPath":".status.nodeName"}"#,
    printcolumn = r#"{"name":"Session","type":"string","priority":1,"jsonPath":".spec.sessionId"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("has(self.sessionId) == has(self.agentRef)")
    .message("sessionId and agentRef go together; only the API server sets them"))]
#[x_kube(validation = Rule::new("has(self.sessionId) == has(oldSelf.sessionId) && (!has(self.sessionId) || self.sessionId == oldSelf.sessionId)")
    .message("a Sandbox keeps its session"))]
#[x_kube(validation = Rule::new("!has(self.sessionId) || self.template == oldSelf.template")
    .message("the template of a session's Sandbox can't change: change the Agent, its next session uses it"))]
#[x_kube(validation = Rule::new("self.incarnation >= oldSelf.incarnation").message("incarnation only grows"))]
pub struct SandboxSpec {
    /// The pod.
    #[serde(default)]
    pub template: SandboxTemplateSpec,
    /// Whether the pod should run. Suspended: no pod, a volume stays.
    #[serde(default)]
    pub operating_mode: OperatingMode,
    /// Whether the pod has a container for tools. The API server leaves it out for agents that need none.
    #[serde(default)]
    pub tools_container: ToolsContainer,
    /// Number of the pod, part of its name: a new one when the last is lost. Only the API server raises it.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub incarnation: u32,
    /// Agent of the session. Only the API server sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ref: Option<ObjectRef>,
    /// Session. Only the API server sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub session_id: Option<String>,
}

/// Whether the pod should run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OperatingMode {
    /// It should.
    #[default]
    Running,
    /// It should not.
    Suspended,
}

/// Whether the pod has a container for tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ToolsContainer {
    /// It has.
    #[default]
    Enabled,
    /// It has not.
    Disabled,
}

/// The pod of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxTemplateSpec {
    /// Image of the container for tools; it needs `sh`. Default: Cadre's sandbox image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// When to pull it. Default: Kubernetes' own rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Resources of the container for tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Box<SandboxResources>>,
    /// Runtime of the pod, for example `gvisor`. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// Environment of tools: literals, no credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<NameValue>,
    /// Whether tools may write outside workspace, home and /tmp.
    #[serde(default)]
    pub root_filesystem: RootFilesystem,
    /// User that tools run as; not 65532, the engine's.
    #[serde(default = "default_user")]
    #[schemars(range(min = 1, max = 65_533))]
    #[x_kube(validation = Rule::new("self != 65532").message("65532 is the engine's own: tools need another"))]
    pub run_as_user: i64,
    /// Group that owns the workspace; not 65532, the engine's.
    #[serde(default = "default_user")]
    #[schemars(range(min = 1, max = 65_533))]
    #[x_kube(validation = Rule::new("self != 65532").message("65532 is the engine's own: tools need another"))]
    pub fs_group: i64,
    /// Whether the pod shares the node's user namespace. Default: Kubernetes' own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
    /// Labels, annotations and placement of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<Box<PodTemplate>>,
    /// Network of the pod.
    #[serde(default)]
    pub network: SandboxNetwork,
    /// Files.
    #[serde(default)]
    pub workspace: Workspace,
}

impl Default for SandboxTemplateSpec {
    fn default() -> Self {
        Self {
            image: None,
            image_pull_policy: None,
            resources: None,
            runtime_class_name: None,
            env: Vec::new(),
            root_filesystem: RootFilesystem::default(),
            run_as_user: default_user(),
            fs_group: default_user(),
            host_users: None,
            pod_template: None,
            network: SandboxNetwork::default(),
            workspace: Workspace::default(),
        }
    }
}

fn default_user() -> i64 {
    1000
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// At every start.
    Always,
    /// When the node lacks it.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// Whether tools may write outside workspace, home and /tmp.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RootFilesystem {
    /// They may not.
    #[default]
    ReadOnly,
    /// They may; it is lost with the pod.
    Writable,
}

/// Resources of the container for tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxResources {
    /// What the scheduler sets aside.
    #[serde(default)]
    pub requests: ResourceAmounts,
    /// What it may not exceed.
    #[serde(default)]
    pub limits: ResourceAmounts,
}

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceAmounts {
    /// Processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub cpu: Option<String>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub memory: Option<String>,
    /// Writable layers, logs and emptyDir volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub ephemeral_storage: Option<String>,
}

/// Labels, annotations and placement of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodTemplate {
    /// Labels; those of `cadre.dev` and `app.kubernetes.io` are the operator's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = Rule::new("self.all(l, !l.name.startsWith('cadre.dev/') && !l.name.startsWith('app.kubernetes.io/'))")
        .message("labels of cadre.dev and app.kubernetes.io are the operator's"))]
    pub labels: Vec<NameValue>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub annotations: Vec<NameValue>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_selector: Vec<NameValue>,
    /// Secrets for pulling images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<ObjectRef>,
}

/// Network of the pod. Whatever the mode, it reaches the API server's worker port and nothing reaches it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("(has(self.allow) && size(self.allow) > 0) == (self.mode == 'Allowlist')")
    .message("mode Allowlist needs allow, and only it"))]
pub struct SandboxNetwork {
    /// What else it reaches.
    #[serde(default)]
    pub mode: NetworkMode,
    /// Mode Allowlist: addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub allow: Vec<NetworkAllow>,
    /// What to do when the cluster does not enforce network policies.
    #[serde(default)]
    pub enforcement: NetworkEnforcement,
}

/// What a pod reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkMode {
    /// Nothing else; models are reached through the API server's gateway.
    #[default]
    Gateway,
    /// The listed addresses; no name look-up.
    Allowlist,
    /// Public addresses, and name look-up.
    Internet,
}

/// Addresses that a pod may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkAllow {
    /// Addresses, for example `203.0.113.0/24`.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("isCIDR(self)").message("cidr must be like 203.0.113.0/24"))]
    pub cidr: String,
    /// TCP ports; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"), inner(range(min = 1, max = 65_535)))]
    pub ports: Vec<u16>,
}

/// What to do when the cluster does not enforce network policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkEnforcement {
    /// Run no tool.
    #[default]
    Required,
    /// Run tools all the same.
    BestEffort,
}

/// Files of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("!has(self.storageClassName) || self.persistence == 'Volume'")
    .message("storageClassName belongs to persistence Volume"))]
pub struct Workspace {
    /// Most bytes.
    #[serde(default = "default_workspace_size")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: String,
    /// Whether files outlive the pod.
    #[serde(default)]
    pub persistence: Persistence,
    /// Persistence Volume: storage class. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

impl Default for Workspace {
    fn default() -> Self {
        Self { size: default_workspace_size(), persistence: Persistence::default(), storage_class_name: None }
    }
}

fn default_workspace_size() -> String {
    "1Gi".to_owned()
}

/// Whether files outlive the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Persistence {
    /// They are lost with the pod.
    #[default]
    Ephemeral,
    /// They are on a volume that is deleted with the Sandbox.
    Volume,
}

/// Where a Sandbox stands, for people; programs read conditions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SandboxPhase {
    /// The pod is on its way.
    #[default]
    Pending,
    /// The pod runs.
    Running,
    /// No pod, on purpose.
    Suspended,
    /// The pod has ended or can't start.
    Failed,
}

/// What was observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// Generation that the conditions speak of; −1 until a controller has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Suspended, NetworkIsolated, Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SandboxPhase>,
    /// Incarnation that `podName` and `podUID` belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u32>,
    /// Its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// The pod's UID: the identity that a worker must prove.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The pod's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The last pod that was evicted for what it used itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Eviction>,
}

/// A pod that kubelet evicted because it used more than it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// Its incarnation.
    pub incarnation: u32,
    /// Why, in kubelet's words.
    pub cause: String,
    /// Whether an earlier pod was evicted for the same cause: there will be no further one.
    #[serde(default)]
    pub again: bool,
}
