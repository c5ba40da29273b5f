//! `GET /health`.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::routes::responses::PublicErrors;
use crate::routes::state::UserState;

/// Whether the process answers.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthResponse {
    /// `ok`.
    status: String,
    /// When it was started; ISO 8601.
    instantiated_at: String,
}

/// Whether the process answers; needs no credential and no database.
#[utoipa::path(
    get, path = "/health", tag = "Server", operation_id = "health",
    responses((status = 200, description = "It does", body = HealthResponse), PublicErrors),
    security(()),
)]
pub async fn health(State(state): State<UserState>) -> Json<HealthResponse> {
    let instantiated_at = format!("{:.6}", state.settings.started_at);
    Json(HealthResponse { status: "ok".to_owned(), instantiated_at })
}
