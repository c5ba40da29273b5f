//! `PATCH /sessions/{session_id}`.

use axum::Json;
use axum::extract::State;
use cadre_store::rows::sessions::SessionEdit;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::find::{Narrow, NarrowQuery};
use super::{get, values};
use crate::auth::actor::Actor;
use crate::render::session::SessionDetail;
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiJson, ApiPath, ApiQuery};
use crate::routes::fields::Fields;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// What to change. What is absent or null stays.
#[derive(Debug, Deserialize, ToSchema)]
pub struct UpdateSession {
    /// Name.
    #[schema(min_length = 1, max_length = 255)]
    session_name: Option<String>,
    /// State; replaces what is there.
    #[schema(value_type = Option<Object>)]
    session_state: Option<Map<String, Value>>,
    /// Metadata; replaces what is there.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// The session in short; replaces what is there.
    #[schema(value_type = Option<Object>)]
    summary: Option<Map<String, Value>>,
}

/// Change a session.
///
/// A run that is under way keeps the state that it was started with.
#[utoipa::path(
    patch, path = "/sessions/{session_id}", tag = "Sessions", operation_id = "update_session",
    params(
        ("session_id" = String, Path, description = "Session"),
        NarrowQuery,
    ),
    request_body = UpdateSession,
    responses((status = 200, description = "The session", body = SessionDetail), Errors),
)]
pub async fn update(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(session_id): ApiPath<String>,
    ApiQuery(mut query): ApiQuery,
    ApiJson(body): ApiJson<UpdateSession>,
) -> Result<Json<SessionDetail>, ApiError> {
    let narrow = Narrow::read(&mut query);
    query.finish()?;
    let UpdateSession { session_name: name, session_state, metadata, summary } = body;
    if let Some(name) = &name {
        let mut checked = Fields::of_body(Vec::new());
        values::check_name(&mut checked, name);
        checked.finish()?;
    }
    let session = narrow.find(&state.service, &actor, &session_id).await?;
    let edit = SessionEdit { name, state: session_state, metadata, summary };
    let session = state.service.edit_session(&session.session_id, actor.scope(), edit).await?;
    Ok(Json(get::with_runs(&state.service, &actor, session).await?))
}
