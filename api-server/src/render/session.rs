//! Sessions.

use std::collections::HashSet;

use cadre_protocol::ids::ComponentKind;
use cadre_protocol::message::Message;
use cadre_protocol::run::RunMetrics;
use cadre_store::rows::{RunDetail, SessionRow};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::message::{self, MessageOutput};
use super::metrics::{self, Metrics};
use super::time::iso;

/// A session of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionSchema {
    /// Session.
    pub session_id: String,
    /// Name; the first input's beginning until renamed.
    pub session_name: String,
    /// State.
    #[schema(value_type = Object)]
    pub session_state: Map<String, Value>,
    /// `agent`.
    pub session_type: String,
    /// Id of its agent; absent before the first run of a session that was made without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The user that the caller named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Metadata.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// What a client has written of it in short.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub session_summary: Option<Map<String, Value>>,
    /// ISO 8601.
    pub created_at: String,
    /// ISO 8601.
    pub updated_at: String,
}

/// A session with its conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionDetail {
    /// The session.
    #[serde(flatten)]
    pub session: SessionSchema,
    /// The session's id once more, as clients expect it.
    pub agent_session_id: String,
    /// The agent.
    pub agent_data: AgentData,
    /// Sums over its runs.
    pub metrics: Metrics,
    /// Tokens in all.
    pub total_tokens: u64,
    /// Messages of its runs, oldest first; of a very long conversation the newest.
    pub chat_history: Vec<MessageOutput>,
}

/// The agent of a session.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct AgentData {
    /// Id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Model: `{id, provider}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub model: Option<Value>,
}

/// A session of a list.
#[must_use]
pub fn schema(session: SessionRow, default_namespace: &str) -> SessionSchema {
    let SessionRow {
        session_id,
        component,
        principal: _,
        user_id,
        name,
        state,
        metadata,
        summary,
        created_at_ms,
        updated_at_ms,
    } = session;
    SessionSchema {
        session_id: session_id.into(),
        session_name: name,
        session_state: state,
        session_type: component.as_ref().map_or(ComponentKind::Agent, |component| component.kind).as_str().to_owned(),
        agent_id: component.map(|component| component.api_id(default_namespace)),
        user_id,
        metadata,
        session_summary: summary,
        created_at: iso(created_at_ms),
        updated_at: iso(updated_at_ms),
    }
}

/// A session with its newest runs, oldest first, and the sum over all of them.
#[must_use]
pub fn detail(session: SessionRow, runs: Vec<RunDetail>, total: &RunMetrics, default_namespace: &str) -> SessionDetail {
    let session = schema(session, default_namespace);
    let metrics = metrics::plain(total);
    let agent_data = runs.last().map(|detail| agent_data(&detail.agent)).unwrap_or_default();
    SessionDetail {
        agent_session_id: session.session_id.clone(),
        session,
        agent_data,
        total_tokens: metrics.total_tokens,
        metrics,
        chat_history: chat_history(runs),
    }
}

/// Messages of all runs. What a run has kept of another one is there once, where it was said first.
fn chat_history(runs: Vec<RunDetail>) -> Vec<MessageOutput> {
    let mut seen = HashSet::new();
    let mut messages: Vec<Message> = runs.into_iter().flat_map(|detail| detail.messages).collect();
    messages.retain(|message| seen.insert(message.id.clone()));
    message::messages(messages)
}

fn agent_data(agent: &cadre_protocol::agent::AgentSnapshot) -> AgentData {
    AgentData {
        agent_id: Some(agent.api_id.clone()),
        name: Some(agent.display_name.clone()),
        model: Some(serde_json::json!({ "id": agent.model.model_id, "provider": agent.model.provider })),
    }
}
