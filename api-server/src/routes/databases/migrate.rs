//! `POST /databases/all/migrate` and `POST /databases/{db_id}/migrate`.

use axum::Json;
use axum::extract::State;
use cadre_protocol::problem::ErrorCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::actor::Actor;
use crate::domain::Service;
use crate::render::agent::DB_ID;
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::fields::Fields;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// What came of a migration.
#[derive(Debug, Serialize, ToSchema)]
pub struct Migrated {
    /// For people.
    message: String,
}

/// Bring the schema of the record up to date.
///
/// Does nothing where it is. Several callers may do so at once. The only target is what this program needs.
#[utoipa::path(
    post, path = "/databases/all/migrate", tag = "Server", operation_id = "migrate_all_databases",
    params(("target_version" = Option<String>, Query, description = "The number of this program's newest migration")),
    responses((status = 200, description = "It is", body = Migrated), Errors),
)]
pub async fn all(
    State(state): State<UserState>,
    actor: Actor,
    ApiQuery(query): ApiQuery,
) -> Result<Json<Migrated>, ApiError> {
    migrate(&state.service, &actor, &query).await?;
    Ok(Json(Migrated { message: "All databases migrated successfully".to_owned() }))
}

/// The same for one database; there is one.
#[utoipa::path(
    post, path = "/databases/{db_id}/migrate", tag = "Server", operation_id = "migrate_database",
    params(
        ("db_id" = String, Path, description = "The database, as `GET /config` names it"),
        ("target_version" = Option<String>, Query, description = "The number of this program's newest migration"),
    ),
    responses((status = 200, description = "It is", body = Migrated), Errors),
)]
pub async fn one(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(db_id): ApiPath<String>,
    ApiQuery(query): ApiQuery,
) -> Result<Json<Migrated>, ApiError> {
    if db_id != DB_ID {
        return Err(ApiError::not_found(format!("No database found with id '{db_id}'")));
    }
    migrate(&state.service, &actor, &query).await?;
    Ok(Json(Migrated { message: format!("Database {DB_ID} migrated successfully") }))
}

async fn migrate(service: &Service, actor: &Actor, query: &Fields) -> Result<(), ApiError> {
    if !actor.admin {
        return Err(ApiError::new(ErrorCode::Forbidden, "Migrations require an admin scope"));
    }
    let newest = service.store().newest_schema();
    match query.text("target_version") {
        Some(target) if target != newest.to_string() => {
            Err(ApiError::bad_request(format!("This server migrates to version {newest} only")))
        }
        _ => Ok(service.migrate().await?),
    }
}
