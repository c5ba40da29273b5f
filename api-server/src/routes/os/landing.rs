//! `GET /`.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::routes::state::UserState;

/// Where to look further. Not in the OpenAPI document, as in AgentOS.
pub async fn landing(State(state): State<UserState>) -> Json<Value> {
    Json(json!({
        "name": state.settings.name,
        "health": "/health",
        "info": "/info",
        "docs": "/docs",
        "openapi": "/openapi.json",
    }))
}
