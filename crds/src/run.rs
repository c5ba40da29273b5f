//! Run: one turn of an agent, as an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::common::schema;

/// One turn of an agent. Immutable but for `cancel` and `ttlSecondsAfterFinished`. Deleting the object cancels the run.
///
/// ```yaml
/// apiVersion: cadre.dev/v1alpha1
/// kind: Run
/// metadata: {generateName: report-}
/// spec:
///   target: {kind: Agent, name: analyst}
///   input: {type: Text, text: Which region sold most?}
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "cadre.dev",
    version = "v1alpha1",
    kind = "Run",
    plural = "runs",
    namespaced,
    status = "RunStatus",
    category = "cadre",
    printcolumn = r#"{"name":"Agent","type":"string","jsonPath":".spec.target.name"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Started","type":"date","jsonPath":".status.startTime"}"#,
    printcolumn = r#"{"name":"Ended","type":"date","jsonPath":".status.completionTime"}"#,
    printcolumn = r#"{"name":"Tokens","type":"integer","priority":1,"jsonPath":".status.usage.totalTokens"}"#,
    printcolumn = r#"{"name":"Session","type":"string","priority":1,"jsonPath":".status.sessionId"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.target == oldSelf.target && self.input == oldSelf.input")
    .message("a Run's target and input can't change: make a new Run"))]
#[x_kube(validation = Rule::new("has(self.session) == has(oldSelf.session) && (!has(self.session) || self.session == oldSelf.session)")
    .message("a Run's session can't change: make a new Run"))]
#[x_kube(validation = Rule::new("has(self.timeoutSeconds) == has(oldSelf.timeoutSeconds) && (!has(self.timeoutSeconds) || self.timeoutSeconds == oldSelf.timeoutSeconds)")
    .message("a Run's timeoutSeconds can't change: make a new Run"))]
#[x_kube(validation = Rule::new("has(self.retries) == has(oldSelf.retries) && (!has(self.retries) || self.retries == oldSelf.retries)")
    .message("a Run's retries can't change: make a new Run"))]
#[x_kube(validation = Rule::new("has(self.metadata) == has(oldSelf.metadata) && (!has(self.metadata) || self.metadata == oldSelf.metadata)")
    .message("a Run's metadata can't change: make a new Run"))]
#[x_kube(validation = Rule::new("has(self.outputSchema) == has(oldSelf.outputSchema) && (!has(self.outputSchema) || self.outputSchema == oldSelf.outputSchema)")
    .message("a Run's outputSchema can't change: make a new Run"))]
#[x_kube(validation = Rule::new("has(self.dependencies) == has(oldSelf.dependencies) && (!has(self.dependencies) || self.dependencies == oldSelf.dependencies)")
    .message("a Run's dependencies can't change: make a new Run"))]
#[x_kube(validation = Rule::new("has(self.sessionState) == has(oldSelf.sessionState) && (!has(self.sessionState) || self.sessionState == oldSelf.sessionState)")
    .message("a Run's sessionState can't change: make a new Run"))]
#[x_kube(validation = Rule::new("!(has(oldSelf.cancel) && oldSelf.cancel) || (has(self.cancel) && self.cancel)")
    .message("a cancel can't be taken back: make a new Run"))]
pub struct RunSpec {
    /// What runs.
    pub target: RunTarget,
    /// What it is asked.
    pub input: RunInput,
    /// Session to join. Default: a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<RunSession>,
    /// Kept with the run and shown by the API.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schema::free_object")]
    pub metadata: Map<String, Value>,
    /// JSON Schema of the answer; replaces the agent's.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schema::free_object")]
    pub output_schema: Map<String, Value>,
    /// Values that instructions may use.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schema::free_object")]
    pub dependencies: Map<String, Value>,
    /// State that the session begins with.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schema::free_object")]
    pub session_state: Map<String, Value>,
    /// Seconds that the run may take. Default: the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_seconds: Option<u32>,
    /// Further attempts after a failure that may pass. Default: the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 20))]
    pub retries: Option<u32>,
    /// Set to true to cancel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
    /// Seconds after its end until the object is deleted. Default: it stays. The API keeps the run either way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<u32>,
}

/// What runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunTarget {
    /// Kind.
    #[serde(default)]
    pub kind: TargetKind,
    /// `metadata.name`, in the Run's namespace.
    #[schemars(length(min = 1, max = 52))]
    pub name: String,
}

/// Kinds that can run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TargetKind {
    /// An Agent.
    #[default]
    Agent,
}

/// What a run is asked: text, parts, or JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("has(self.text) == (self.type == 'Text')").message("type Text needs the member text, and only it"))]
#[x_kube(validation = Rule::new("has(self.parts) == (self.type == 'Parts')").message("type Parts needs the member parts, and only it"))]
#[x_kube(validation = Rule::new("has(self.json) == (self.type == 'Json')").message("type Json needs the member json, and only it"))]
pub struct RunInput {
    /// Which member is set.
    #[serde(rename = "type")]
    pub kind: InputType,
    /// Type Text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 262_144))]
    pub text: Option<String>,
    /// Type Parts: texts and files, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub parts: Option<Vec<InputPart>>,
    /// Type Json: given to the model as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::free_object")]
    pub json: Option<Map<String, Value>>,
}

/// Kinds of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InputType {
    /// Text.
    Text,
    /// Texts and files.
    Parts,
    /// JSON.
    Json,
}

/// A text or a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("has(self.text) == (self.type == 'Text')").message("type Text needs the member text, and only it"))]
#[x_kube(validation = Rule::new("has(self.file) == (self.type == 'File')").message("type File needs the member file, and only it"))]
pub struct InputPart {
    /// Which member is set.
    #[serde(rename = "type")]
    pub kind: PartType,
    /// Type Text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 262_144))]
    pub text: Option<String>,
    /// Type File.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<InputFile>,
}

/// Kinds of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PartType {
    /// Text.
    Text,
    /// A file.
    File,
}

/// A text file that comes with the run. It is put into the workspace below `uploads/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InputFile {
    /// File name, without folders.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[^/\\]+$"))]
    #[x_kube(validation = Rule::new("self != '.' && self != '..'").message("a file can't be called . or .."))]
    pub name: String,
    /// Media type.
    #[serde(default = "default_media_type")]
    #[schemars(length(min = 1, max = 128))]
    pub media_type: String,
    /// Content.
    #[schemars(length(max = 262_144))]
    pub content: String,
}

fn default_media_type() -> String {
    "text/plain".to_owned()
}

/// A session to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunSession {
    /// Its id.
    #[schemars(length(min = 1, max = 256))]
    pub id: String,
}

/// Where a run stands, for people; programs read conditions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RunPhase {
    /// Waits.
    #[default]
    Pending,
    /// Is being executed.
    Running,
    /// Waits for a person.
    Paused,
    /// Ended well.
    Completed,
    /// Ended with an error.
    Failed,
    /// Ended by a cancel.
    Cancelled,
}

/// What was observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Generation that the conditions speak of; −1 until a controller has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Complete, Failed, Paused, Finished, Ready, Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<RunPhase>,
    /// Id of the run in the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// When its execution began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Attempts begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Tokens and cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<RunUsage>,
    /// The answer's first 4 KiB; the API has all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Whether the answer was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_truncated: Option<bool>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
    /// The run of the same session that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_on: Option<String>,
    /// While it is paused: the calls that wait for a person. `kubectl cadre logs run/NAME` shows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub pending_approvals: Vec<PendingApproval>,
}

/// A call that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingApproval {
    /// Id of the call.
    pub id: String,
    /// Its tool.
    pub tool: String,
}

/// Tokens and cost of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunUsage {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Answer tokens.
    pub output_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// US dollars, as a decimal text; absent when a model has no prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<String>,
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunError {
    /// Stable kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// For people.
    pub message: String,
}
