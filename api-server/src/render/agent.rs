//! Agents: AgentOS's AgentResponse, which shows only what differs from the defaults.

use cadre_protocol::agent::{AgentSnapshot, Builtin, ToolBinding};
use cadre_protocol::requirement::Gate;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::catalog::CatalogAgent;

/// The one database, by the name that AgentOS's clients send back.
pub const DB_ID: &str = "cadre";

/// An agent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct AgentResponse {
    /// Id: `name`, or `namespace.name` outside of the default namespace.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Database.
    pub db_id: String,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelResponse>,
    /// `{tools: [{name, …}]}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub tools: Option<Value>,
    /// How earlier turns are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub sessions: Option<Value>,
    /// What the model is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub system_message: Option<Value>,
    /// How answers are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub response_settings: Option<Value>,
    /// Whether tools run in a sandbox.
    pub sandboxed: bool,
    /// Whether runs are accepted; ours.
    pub ready: bool,
    /// Why they are not; ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Content address of what runs are made with; ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelResponse {
    /// Name of the Model resource.
    pub name: String,
    /// The provider's model id.
    pub model: String,
    /// Provider.
    pub provider: String,
}

/// An agent of `/config`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct AgentSummary {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Database.
    pub db_id: String,
    /// Its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSummary>,
    /// Whether tools run in a sandbox.
    pub sandboxed: bool,
}

/// A model of `/config`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
pub struct ModelSummary {
    /// The provider's model id.
    pub id: String,
    /// Provider.
    pub provider: String,
}

/// An agent.
#[must_use]
pub fn response(agent: &CatalogAgent) -> AgentResponse {
    let snapshot = agent.snapshot().map(AsRef::as_ref);
    AgentResponse {
        id: agent.api_id.clone(),
        name: agent.display_name.clone(),
        db_id: DB_ID.to_owned(),
        description: agent.description.clone(),
        model: snapshot.map(model),
        tools: snapshot.and_then(|s| tools(&s.tools)),
        sessions: snapshot.and_then(sessions),
        system_message: snapshot.and_then(system_message),
        response_settings: snapshot.and_then(response_settings),
        sandboxed: snapshot.is_some_and(AgentSnapshot::needs_sandbox),
        ready: agent.is_ready(),
        reason: agent.reason().map(str::to_owned),
        revision: agent.state.as_ref().ok().map(|resolved| resolved.revision.to_string()),
    }
}

/// An agent of `/config`.
#[must_use]
pub fn summary(agent: &CatalogAgent) -> AgentSummary {
    let snapshot = agent.snapshot();
    AgentSummary {
        id: agent.api_id.clone(),
        name: agent.display_name.clone(),
        description: agent.description.clone(),
        db_id: DB_ID.to_owned(),
        model: snapshot.map(|s| ModelSummary { id: s.model.model_id.clone(), provider: s.model.provider.clone() }),
        sandboxed: snapshot.is_some_and(|s| s.needs_sandbox()),
    }
}

fn model(snapshot: &AgentSnapshot) -> ModelResponse {
    let binding = &snapshot.model;
    ModelResponse { name: binding.name.clone(), model: binding.model_id.clone(), provider: binding.provider.clone() }
}

fn tools(bindings: &[ToolBinding]) -> Option<Value> {
    let named: Vec<Value> = bindings.iter().flat_map(tool_names).collect();
    (!named.is_empty()).then(|| json!({ "tools": named }))
}

/// The names under which the model sees a built-in family.
fn tool_names(binding: &ToolBinding) -> Vec<Value> {
    let family = match binding.builtin {
        Builtin::Shell => "shell",
        Builtin::Files => "files",
        Builtin::Http => "http",
    };
    let tool = |name: &&str| {
        let mut tool = json!({ "name": name, "builtin": family });
        if binding.gates.of(name, std::iter::empty()) == Some(Gate::Confirmation) {
            tool["requires_confirmation"] = true.into();
        }
        tool
    };
    binding.builtin.tools().iter().map(tool).collect()
}

fn sessions(snapshot: &AgentSnapshot) -> Option<Value> {
    let runs = snapshot.history.runs;
    (runs > 0).then(|| json!({ "add_history_to_context": true, "num_history_runs": runs }))
}

fn system_message(snapshot: &AgentSnapshot) -> Option<Value> {
    let mut fields = Map::new();
    if !snapshot.instructions.is_empty() {
        fields.insert("instructions".to_owned(), snapshot.instructions.as_str().into());
    }
    for (name, value) in
        [("expected_output", &snapshot.expected_output), ("additional_context", &snapshot.additional_context)]
    {
        if let Some(text) = value {
            fields.insert(name.to_owned(), text.as_str().into());
        }
    }
    if snapshot.markdown {
        fields.insert("markdown".to_owned(), true.into());
    }
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn response_settings(snapshot: &AgentSnapshot) -> Option<Value> {
    let mut fields = Map::new();
    if snapshot.retry.retries > 0 {
        fields.insert("retries".to_owned(), snapshot.retry.retries.into());
        fields.insert("delay_between_retries".to_owned(), snapshot.retry.delay_seconds.into());
        fields.insert("exponential_backoff".to_owned(), snapshot.retry.exponential.into());
    }
    if let Some(schema) = &snapshot.output_schema {
        let title = schema.get("title").and_then(Value::as_str).unwrap_or("object");
        fields.insert("output_schema_name".to_owned(), title.into());
    }
    (!fields.is_empty()).then_some(Value::Object(fields))
}
