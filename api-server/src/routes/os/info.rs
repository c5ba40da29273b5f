//! `GET /info`.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::routes::responses::PublicErrors;
use crate::routes::state::UserState;

/// The version of AgentOS whose HTTP API this one follows.
pub const AGENT_OS_VERSION: &str = "3.1.10";

/// What this server is.
#[derive(Debug, Serialize, ToSchema)]
pub struct InfoResponse {
    /// Its id.
    os_id: String,
    /// Its name.
    name: String,
    /// Version of Cadre.
    os_version: String,
    /// Version of AgentOS whose API it follows.
    agno_version: String,
    /// Agents.
    agent_count: usize,
    /// Teams.
    team_count: usize,
    /// Workflows.
    workflow_count: usize,
    /// Its MCP endpoint.
    mcp: McpInfo,
    /// `none` or `security_key`.
    auth_mode: String,
    /// Whether callers see only what is theirs.
    user_isolation: bool,
}

/// An MCP endpoint.
#[derive(Debug, Serialize, ToSchema)]
pub struct McpInfo {
    /// Whether there is one.
    enabled: bool,
}

/// What this server is; needs no credential.
#[utoipa::path(
    get, path = "/info", tag = "Server", operation_id = "info",
    responses((status = 200, description = "What it is", body = InfoResponse), PublicErrors),
    security(()),
)]
pub async fn info(State(state): State<UserState>) -> Json<InfoResponse> {
    let settings = &state.settings;
    Json(InfoResponse {
        os_id: settings.os_id.clone(),
        name: settings.name.clone(),
        os_version: env!("CARGO_PKG_VERSION").to_owned(),
        agno_version: AGENT_OS_VERSION.to_owned(),
        agent_count: state.service.agents().len(),
        team_count: 0,
        workflow_count: 0,
        mcp: McpInfo { enabled: false },
        auth_mode: settings.authentication.mode().to_owned(),
        user_isolation: false,
    })
}
