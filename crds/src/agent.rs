//! Agent: instructions, a model and tools.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::common::references::ObjectRef;
use crate::common::schema;
use crate::sandbox::SandboxTemplateSpec;

/// Instructions, a model and tools. Each session of an agent runs in a pod of its own.
///
/// ```yaml
/// apiVersion: cadre.dev/v1alpha1
/// kind: Agent
/// metadata: {name: analyst}
/// spec:
///   modelRef: {name: gpt}
///   instructions: Answer with numbers from the files, never from memory.
///   tools:
///   - {type: Builtin, builtin: {name: Shell}}
///   - {type: Builtin, builtin: {name: Files}}
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "cadre.dev",
    version = "v1alpha1",
    kind = "Agent",
    plural = "agents",
    namespaced,
    status = "AgentStatus",
    shortname = "ag",
    category = "cadre",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Model","type":"string","jsonPath":".spec.modelRef.name"}"#,
    printcolumn = r#"{"name":"Active","type":"integer","jsonPath":".status.activeRuns"}"#,
    printcolumn = r#"{"name":"Queued","type":"integer","jsonPath":".status.queuedRuns"}"#,
    printcolumn = r#"{"name":"Last","type":"string","jsonPath":".status.lastRun.phase"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentSpec {
    /// Name for people; `metadata.name` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub display_name: Option<String>,
    /// What the agent is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// The Model that it uses.
    pub model_ref: ObjectRef,
    /// Instructions. `{name}` is replaced by the run's dependency or the session's state of that name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 100_000))]
    pub instructions: String,
    /// What a good answer looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16_384))]
    pub expected_output: Option<String>,
    /// Further context for the system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16_384))]
    pub additional_context: Option<String>,
    /// Whether answers should be Markdown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub markdown: bool,
    /// Tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub tools: Vec<ToolSpec>,
    /// Most tool calls in one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub tool_call_limit: Option<u32>,
    /// Whether the model must use a tool in its first reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// How much of earlier turns the model sees.
    #[serde(default)]
    pub history: HistorySpec,
    /// Which events of its runs are kept. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsSpec>,
    /// Shape of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<OutputSpec>>,
    /// Further attempts after a failure that may pass. An attempt goes on where the last one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 20))]
    pub retries: Option<u32>,
    /// Seconds before the first of them. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub delay_between_retries_seconds: Option<u32>,
    /// Whether the delay doubles with each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exponential_backoff: bool,
    /// Seconds that a run may take. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_seconds: Option<u32>,
    /// Limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<AgentLimits>>,
    /// A tool call that had started when its worker was lost: tell the model, or run it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unknown_outcome: Option<OnUnknownOutcome>,
    /// Files that a lost workspace held and the new one lacks: tell the model, or fail the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_workspace_loss: Option<OnWorkspaceLoss>,
    /// Where its tools run. Only agents with Shell or Files have a sandbox container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<AgentSandbox>>,
    /// Refuse new runs; those under way go on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// A tool.
///
/// ```yaml
/// - {type: Builtin, builtin: {name: Shell}, requireApproval: [shell]}
/// - {type: Builtin, builtin: {name: Files}, requireApproval: [write_file, edit_file]}
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.type != 'Builtin' || has(self.builtin)")
    .message("type Builtin needs the member builtin, for example builtin: {name: Shell}"))]
#[x_kube(validation = Rule::new("[has(self.requireApproval), has(self.requireUserInput), has(self.externalExecution)].filter(set, set).size() <= 1")
    .message("set only one of requireApproval, requireUserInput and externalExecution: a call waits for one kind of answer"))]
#[x_kube(validation = Rule::new("!has(self.builtin) || !has(self.requireApproval) || self.requireApproval.all(t, t == '*' || (self.builtin.name == 'Shell' && t == 'shell') || (self.builtin.name == 'Files' && t in ['list_files', 'read_file', 'write_file', 'edit_file', 'search_files']) || (self.builtin.name == 'Http' && t == 'http'))")
    .message("requireApproval names tools of this entry as the model sees them: shell; list_files, read_file, write_file, edit_file, search_files; http; or '*' for all"))]
#[x_kube(validation = Rule::new("!has(self.builtin) || !has(self.externalExecution) || self.externalExecution.all(t, t == '*' || (self.builtin.name == 'Shell' && t == 'shell') || (self.builtin.name == 'Files' && t in ['list_files', 'read_file', 'write_file', 'edit_file', 'search_files']) || (self.builtin.name == 'Http' && t == 'http'))")
    .message("externalExecution names tools of this entry as the model sees them: shell; list_files, read_file, write_file, edit_file, search_files; http; or '*' for all"))]
#[x_kube(validation = Rule::new("!has(self.builtin) || !has(self.requireUserInput) || self.requireUserInput.all(a, (self.builtin.name == 'Shell' && a in ['command', 'cwd', 'timeout_seconds']) || (self.builtin.name == 'Files' && a in ['content', 'first_line', 'glob', 'max_lines', 'new', 'old', 'path', 'pattern', 'recursive', 'replace_all']) || (self.builtin.name == 'Http' && a in ['body', 'headers', 'method', 'url']))")
    .message("requireUserInput names arguments of this entry's tools: command, cwd, timeout_seconds of Shell; content, first_line, glob, max_lines, new, old, path, pattern, recursive, replace_all of Files; body, headers, method, url of Http"))]
pub struct ToolSpec {
    /// Which member is set.
    #[serde(rename = "type")]
    pub kind: ToolType,
    /// Type Builtin: a tool of Cadre's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builtin: Option<BuiltinTool>,
    /// Seconds until a call is ended with all its processes.
    #[serde(default = "default_tool_timeout")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: u32,
    /// Whether a call may run twice without harm: after a crash it is then run again instead of reported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    /// Tools, as the model sees them, whose calls each need a person's yes; `*` is all of this entry. The run is paused
    /// meanwhile. An approved call runs once, with exactly the arguments that were approved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"), inner(length(min = 1, max = 64)))]
    pub require_approval: Vec<String>,
    /// Arguments that the user gives. The model is not offered them; the run is paused until they are there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"), inner(length(min = 1, max = 64)))]
    pub require_user_input: Vec<String>,
    /// Tools, as the model sees them, that the run's caller carries out; `*` is all of this entry. The run is paused until
    /// the result is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"), inner(length(min = 1, max = 64)))]
    pub external_execution: Vec<String>,
}

fn default_tool_timeout() -> u32 {
    120
}

/// Kinds of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ToolType {
    /// A tool of Cadre's own.
    Builtin,
}

/// A tool of Cadre's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.name == 'Http' || !has(self.http)")
    .message("http belongs to name Http: remove it or set name: Http"))]
#[x_kube(validation = Rule::new("self.name != 'Http' || has(self.http)")
    .message("name Http needs http.hosts: the hosts that the tool may reach"))]
pub struct BuiltinTool {
    /// Which.
    pub name: BuiltinName,
    /// Name Http: what it may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpTool>,
}

/// Tools of Cadre's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BuiltinName {
    /// Commands in the sandbox container.
    Shell,
    /// List, read, write, edit and search files of the workspace.
    Files,
    /// HTTP requests, made by the API server's gateway.
    Http,
}

/// What the tool Http may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpTool {
    /// Host names, or `*.example.com` for all names below one.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "set"), inner(length(min = 1, max = 253)))]
    pub hosts: Vec<String>,
}

/// Whether the model must use a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ToolChoice {
    /// It decides.
    Auto,
    /// It must not.
    None,
    /// It must.
    Required,
}

/// How much of earlier turns the model sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HistorySpec {
    /// Whether it sees any.
    #[serde(default = "default_true")]
    pub enabled: bool,
    /// Number of earlier runs of the session.
    #[serde(default = "default_history_runs")]
    #[schemars(range(min = 1, max = 1000))]
    pub runs: u32,
}

impl Default for HistorySpec {
    fn default() -> Self {
        Self { enabled: true, runs: default_history_runs() }
    }
}

fn default_true() -> bool {
    true
}

fn default_history_runs() -> u32 {
    3
}

/// Which events of runs are kept. Streams that are open at the API server that has the run's worker get all of them as they
/// happen; those that come back, or are open at another one, get what is kept. How a run ended or why it is paused is always
/// kept, as are messages, tool calls and metrics.
///
/// ```yaml
/// events: {skip: [RunContent, ModelRequestStarted]}
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventsSpec {
    /// Whether any are kept.
    #[serde(default = "default_true")]
    pub store: bool,
    /// Events that are not kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"))]
    pub skip: Vec<EventName>,
}

/// Events that need not be kept, by their names in streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EventName {
    /// A run has begun.
    RunStarted,
    /// A run goes on.
    RunContinued,
    /// The model is asked.
    ModelRequestStarted,
    /// A piece of the answer.
    RunContent,
    /// The model has answered.
    ModelRequestCompleted,
    /// The answer is complete.
    RunContentCompleted,
    /// A tool begins.
    ToolCallStarted,
    /// A tool has ended.
    ToolCallCompleted,
    /// A tool has failed.
    ToolCallError,
    /// Anything else, for example a retry.
    CustomEvent,
}

impl EventName {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::RunStarted,
        Self::RunContinued,
        Self::ModelRequestStarted,
        Self::RunContent,
        Self::ModelRequestCompleted,
        Self::RunContentCompleted,
        Self::ToolCallStarted,
        Self::ToolCallCompleted,
        Self::ToolCallError,
        Self::CustomEvent,
    ];

    /// As streams call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RunStarted => "RunStarted",
            Self::RunContinued => "RunContinued",
            Self::ModelRequestStarted => "ModelRequestStarted",
            Self::RunContent => "RunContent",
            Self::ModelRequestCompleted => "ModelRequestCompleted",
            Self::RunContentCompleted => "RunContentCompleted",
            Self::ToolCallStarted => "ToolCallStarted",
            Self::ToolCallCompleted => "ToolCallCompleted",
            Self::ToolCallError => "ToolCallError",
            Self::CustomEvent => "CustomEvent",
        }
    }
}

/// Shape of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutputSpec {
    /// JSON Schema; its root must be an object.
    #[schemars(schema_with = "schema::free_object")]
    pub schema: Map<String, Value>,
}

/// Limits of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentLimits {
    /// Most model calls in one run. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_turns: Option<u32>,
    /// Most tokens of a run's model calls, prompts and answers together. Reserved before each call; the run fails with
    /// `budget_exceeded` when a call might pass it. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub max_tokens: Option<u64>,
    /// Most US dollars that a run's model calls may cost, as a decimal text. Needs a Model with pricing. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::decimal")]
    pub max_budget_usd: Option<String>,
    /// Most sessions that run at once; further ones wait. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_concurrent_sessions: Option<u32>,
    /// Most runs that may wait; further ones are refused. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_queue_depth: Option<u32>,
}

/// What to do about a tool call whose outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnUnknownOutcome {
    /// Tell the model.
    Report,
    /// Run it again.
    Retry,
}

/// What to do about lost files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnWorkspaceLoss {
    /// Tell the model.
    Report,
    /// Fail the run.
    Fail,
}

/// Where an agent's tools run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentSandbox {
    /// The pod of a session.
    #[serde(default)]
    pub template: SandboxTemplateSpec,
    /// Seconds that the pod stays after a turn, for the next one.
    #[serde(default = "default_warm_seconds")]
    #[schemars(range(min = 0, max = 86_400))]
    pub warm_seconds: u32,
}

/// Seconds that a pod stays after a turn when nothing else is said.
#[must_use]
pub fn default_warm_seconds() -> u32 {
    300
}

/// What was observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Generation that the conditions speak of; −1 until a controller has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, ModelResolved, Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Content address of the resolved agent: what new runs are run with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Runs that are being executed. At most one write in ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_runs: Option<u32>,
    /// Runs that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_runs: Option<u32>,
    /// Runs that wait for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_runs: Option<u32>,
    /// The run that ended last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<LastRun>,
}

/// The run that ended last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastRun {
    /// Its id in the API.
    pub id: String,
    /// How it ended.
    pub phase: String,
}
