//! Model: a language model and how to reach it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::common::references::{NameValue, SecretKeyRef};
use crate::common::schema;

/// A language model and how to reach it. The credential stays in its Secret: only the API server's gateway reads it.
///
/// ```yaml
/// apiVersion: cadre.dev/v1alpha1
/// kind: Model
/// metadata: {name: gpt}
/// spec:
///   provider: OpenAI
///   model: gpt-5.6-luna
///   auth: {secretRef: {name: openai, key: api-key}}
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "cadre.dev",
    version = "v1alpha1",
    kind = "Model",
    plural = "models",
    namespaced,
    status = "ModelStatus",
    shortname = "mdl",
    category = "cadre",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Provider","type":"string","jsonPath":".spec.provider"}"#,
    printcolumn = r#"{"name":"Model","type":"string","jsonPath":".spec.model"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.provider != 'OpenAICompatible' || has(self.baseUrl)")
    .message("provider OpenAICompatible needs baseUrl, for example https://models.example.com/v1"))]
#[x_kube(validation = Rule::new("self.provider == 'Scripted' || !has(self.script)")
    .message("script belongs to provider Scripted: remove it or set provider: Scripted"))]
#[x_kube(validation = Rule::new("self.provider != 'Scripted' || (!has(self.auth) && !has(self.baseUrl) && !has(self.api))")
    .message("provider Scripted answers by itself: remove auth, baseUrl and api"))]
#[x_kube(validation = Rule::new("!has(self.api) || self.provider != 'Anthropic' || self.api == 'Messages'")
    .message("provider Anthropic speaks api Messages"))]
#[x_kube(validation = Rule::new("!has(self.api) || self.provider == 'Anthropic' || self.api != 'Messages'")
    .message("api Messages belongs to provider Anthropic; OpenAI and OpenAICompatible speak Responses or ChatCompletions"))]
#[x_kube(validation = Rule::new("!has(self.budget) || has(self.pricing)")
    .message("budget needs pricing: without prices nobody knows what a call costs"))]
pub struct ModelSpec {
    /// Who serves the model.
    pub provider: Provider,
    /// The provider's name for the model, for example `claude-sonnet-4-6`.
    #[schemars(length(min = 1, max = 256))]
    pub model: String,
    /// Format of requests. Default: Messages for Anthropic, Responses for OpenAI, ChatCompletions for OpenAICompatible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ModelApi>,
    /// Where the provider is reached, when not at its own address. Up to the version, for example `https://host/v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^https?://[^@?#]+$')")
        .message("baseUrl must be an http or https URL without user, query or fragment"))]
    pub base_url: Option<String>,
    /// Credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<ModelAuth>,
    /// Further request headers. No credentials: they would be readable in this object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = Rule::new("self.all(h, !(h.name.lowerAscii() in ['authorization', 'x-api-key', 'api-key', 'x-goog-api-key', 'cookie', 'proxy-authorization', 'host']))")
        .message("a header here is readable by everyone who can read this Model: put credentials into auth.secretRef"))]
    pub headers: Vec<NameValue>,
    /// Sampling and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Box<ModelParameters>>,
    /// Prices; without them runs have no cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pricing: Option<Box<ModelPricing>>,
    /// What all calls of this Model may cost in a period, over all agents and API servers. Needs pricing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<ModelBudget>,
    /// Seconds until a request is given up.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Further tries after a failure that may pass, before anything of an answer has arrived.
    #[serde(default = "default_retries")]
    #[schemars(range(min = 0, max = 10))]
    pub retries: u32,
    /// Provider Scripted: the turns that it answers with. See docs/scripted.md. Without it the model echoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub script: Option<String>,
}

fn default_timeout_seconds() -> u32 {
    300
}

fn default_retries() -> u32 {
    2
}

/// Who serves a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Provider {
    /// Anthropic.
    Anthropic,
    /// OpenAI.
    OpenAI,
    /// A server that speaks OpenAI's formats.
    OpenAICompatible,
    /// Answers from a script: deterministic, no network, no credential.
    Scripted,
}

impl Provider {
    /// The text in the object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "Anthropic",
            Self::OpenAI => "OpenAI",
            Self::OpenAICompatible => "OpenAICompatible",
            Self::Scripted => "Scripted",
        }
    }
}

/// Format of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ModelApi {
    /// Anthropic Messages.
    Messages,
    /// OpenAI Responses.
    Responses,
    /// OpenAI Chat Completions.
    ChatCompletions,
}

/// A credential and how it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelAuth {
    /// The Secret's key. The Secret needs the label `cadre.dev/credential: "true"`, and the annotation
    /// `cadre.dev/hosts` when the credential goes anywhere but to the provider's own address.
    pub secret_ref: SecretKeyRef,
    /// Header that carries it. Default: the provider's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub header: Option<String>,
    /// Word before it, for example `Bearer`. Default: the provider's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = r"^[A-Za-z0-9-]*$"))]
    pub scheme: Option<String>,
}

/// Sampling and limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelParameters {
    /// Randomness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: Option<f64>,
    /// Most tokens of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_output_tokens: Option<u32>,
    /// How much to think, for example `low`, `medium`, `high`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub reasoning_effort: Option<String>,
    /// Further fields of the request body, as the provider names them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schema::free_object")]
    pub extra: Map<String, Value>,
}

/// Prices in US dollars for a million tokens, as decimal texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelPricing {
    /// Prompt tokens.
    #[schemars(schema_with = "schema::decimal")]
    pub input: String,
    /// Answer tokens.
    #[schemars(schema_with = "schema::decimal")]
    pub output: String,
    /// Prompt tokens from the provider's cache. Default: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::decimal")]
    pub cache_read: Option<String>,
    /// Prompt tokens into the provider's cache. Default: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::decimal")]
    pub cache_write: Option<String>,
}

/// What may be spent in a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelBudget {
    /// US dollars, as a decimal text. Reserved before each call; a call that might pass it is refused.
    #[schemars(schema_with = "schema::decimal")]
    pub usd: String,
    /// The period. It begins with the hour, the day or the month, in UTC.
    pub window: BudgetWindow,
}

/// A period of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BudgetWindow {
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A month of the calendar.
    Month,
}

/// What was observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// Generation that the conditions speak of; −1 until a controller has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, CredentialResolved, Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
