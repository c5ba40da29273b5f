//! `GET /config`.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::actor::Actor;
use crate::render::agent::{AgentSummary, DB_ID, ModelSummary, summary};
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// What this server offers.
#[derive(Debug, Serialize, ToSchema)]
pub struct ConfigResponse {
    /// Its id.
    os_id: String,
    /// Its name.
    name: String,
    /// Models of its agents.
    available_models: Vec<ModelSummary>,
    /// The database.
    os_database: String,
    /// The database once more.
    databases: Vec<String>,
    /// Where sessions are.
    session: DomainConfig,
    /// Where usage by day is.
    metrics: DomainConfig,
    /// What the queue promises.
    queue: QueueCapabilities,
    /// Agents.
    agents: Vec<AgentSummary>,
    /// Teams: none.
    #[schema(value_type = Vec<Object>)]
    teams: Vec<()>,
    /// Workflows: none.
    #[schema(value_type = Vec<Object>)]
    workflows: Vec<()>,
    /// Other protocols: none.
    #[schema(value_type = Vec<Object>)]
    interfaces: Vec<()>,
}

/// Where things of a kind are.
#[derive(Debug, Serialize, ToSchema)]
pub struct DomainConfig {
    /// Databases.
    dbs: Vec<DatabaseConfig>,
}

/// A database.
#[derive(Debug, Serialize, ToSchema)]
pub struct DatabaseConfig {
    /// Its id.
    db_id: String,
}

/// What the queue promises.
#[derive(Debug, Serialize, ToSchema)]
pub struct QueueCapabilities {
    /// Accepted runs survive crashes.
    durable: bool,
    /// Runs of a session go one after the other, in the order of acceptance.
    queue_per_session: bool,
}

fn the_database() -> DomainConfig {
    DomainConfig { dbs: vec![DatabaseConfig { db_id: DB_ID.to_owned() }] }
}

/// What this server offers.
#[utoipa::path(
    get, path = "/config", tag = "Server", operation_id = "config",
    responses((status = 200, description = "What it offers", body = ConfigResponse), Errors),
)]
pub async fn config(State(state): State<UserState>, _actor: Actor) -> Json<ConfigResponse> {
    let agents: Vec<AgentSummary> = state.service.agents().iter().map(summary).collect();
    let models: BTreeSet<ModelSummary> = agents.iter().filter_map(|agent| agent.model.clone()).collect();
    Json(ConfigResponse {
        os_id: state.settings.os_id.clone(),
        name: state.settings.name.clone(),
        available_models: models.into_iter().collect(),
        os_database: DB_ID.to_owned(),
        databases: vec![DB_ID.to_owned()],
        session: the_database(),
        metrics: the_database(),
        queue: QueueCapabilities { durable: true, queue_per_session: true },
        agents,
        teams: Vec::new(),
        workflows: Vec::new(),
        interfaces: Vec::new(),
    })
}
