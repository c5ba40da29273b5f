//! `POST /sessions`.

use axum::Json;
use axum::extract::State;
use cadre_protocol::ids::SessionId;
use cadre_store::rows::sessions::NewSession;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{find, get, values};
use crate::auth::actor::Actor;
use crate::render::session::SessionDetail;
use crate::routes::error::ApiError;
use crate::routes::extract::{ApiQuery, OptionalJson};
use crate::routes::fields::Fields;
use crate::routes::responses::{Conflicts, Errors};
use crate::routes::state::UserState;

/// A session to make. Everything may be left out.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct CreateSession {
    /// The caller's id for it; a new one when absent.
    #[schema(min_length = 1, max_length = 256)]
    session_id: Option<String>,
    /// Name; the first input's beginning when absent.
    #[schema(min_length = 1, max_length = 255)]
    session_name: Option<String>,
    /// State.
    #[schema(value_type = Option<Object>)]
    session_state: Option<Map<String, Value>>,
    /// Metadata.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// The user on whose behalf the caller asks.
    #[schema(min_length = 1, max_length = 512)]
    user_id: Option<String>,
    /// The agent; that of the first run when absent.
    #[schema(min_length = 1, max_length = 512)]
    agent_id: Option<String>,
}

/// Make a session before its first run.
///
/// Runs join it by its id. An id of one or two dots is refused: it can't be part of a path.
#[utoipa::path(
    post, path = "/sessions", tag = "Sessions", operation_id = "create_session",
    params(
        ("type" = Option<String>, Query, description = "`agent`"),
        ("db_id" = Option<String>, Query, description = "The database, as `GET /config` names it"),
    ),
    request_body = Option<CreateSession>,
    responses((status = 201, description = "The session", body = SessionDetail), Errors, Conflicts),
)]
pub async fn create(
    State(state): State<UserState>,
    actor: Actor,
    ApiQuery(mut query): ApiQuery,
    OptionalJson(body): OptionalJson<CreateSession>,
) -> Result<(StatusCode, Json<SessionDetail>), ApiError> {
    query.one_of("type", &["agent"]);
    let db_id = query.text("db_id").map(str::to_owned);
    query.finish()?;
    find::check_database(db_id.as_deref())?;
    let CreateSession { session_id, session_name, session_state, metadata, user_id, agent_id } = body;
    let mut checked = Fields::of_body(Vec::new());
    if let Some(name) = &session_name {
        values::check_name(&mut checked, name);
    }
    values::check_id(&mut checked, "user_id", user_id.as_deref());
    values::check_id(&mut checked, "agent_id", agent_id.as_deref());
    checked.finish()?;
    let session_id = match session_id {
        None => SessionId::generate(),
        Some(text) => SessionId::new(text.as_str())
            .map_err(|invalid| values::wrong("session_id", &format!("Value error, {invalid}"), text.into()))?,
    };
    let session = state.service.create_session(NewSession {
        session_id,
        component: agent_id.map(|id| state.service.component(&id)),
        principal: actor.principal.clone(),
        user_id,
        name: session_name.unwrap_or_default(),
        state: session_state.unwrap_or_default(),
        metadata: metadata.unwrap_or_default(),
        at_ms: state.service.now_ms(),
    });
    let detail = get::with_runs(&state.service, &actor, session.await?).await?;
    Ok((StatusCode::CREATED, Json(detail)))
}
