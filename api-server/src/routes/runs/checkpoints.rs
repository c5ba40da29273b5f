//! `GET /agents/{agent_id}/runs/{run_id}/checkpoints` and `…/checkpoints/{message_index}`.

use axum::Json;
use axum::extract::State;
use cadre_store::rows::RunDetail;

use super::lookup;
use crate::auth::actor::Actor;
use crate::domain::continuing::index_of;
use crate::render::checkpoint::{self, Checkpoints, Snapshot};
use crate::routes::error::{ApiError, FieldError};
use crate::routes::extract::{ApiPath, ApiQuery};
use crate::routes::fields::Fields;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// Places from which a run can be continued.
///
/// One after each message and each complete batch of tool calls; `message_index` is what `continue_from` takes.
#[utoipa::path(
    get, path = "/agents/{agent_id}/runs/{run_id}/checkpoints", tag = "Runs", operation_id = "list_agent_run_checkpoints",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("run_id" = String, Path, description = "Run"),
        ("session_id" = String, Query, description = "Session of the run"),
    ),
    responses((status = 200, description = "The checkpoints", body = Checkpoints), Errors),
)]
pub async fn list(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath((agent_id, run_id)): ApiPath<(String, String)>,
    ApiQuery(query): ApiQuery,
) -> Result<Json<Checkpoints>, ApiError> {
    let detail = find(&state, &actor, &agent_id, &run_id, query).await?;
    Ok(Json(checkpoint::list(&detail.run, &detail.messages)))
}

/// A run as it was at a place of its conversation.
///
/// A place in the midst of a batch of tool calls means the last one before it. Nothing is changed.
#[utoipa::path(
    get, path = "/agents/{agent_id}/runs/{run_id}/checkpoints/{message_index}", tag = "Runs",
    operation_id = "get_agent_run_checkpoint_snapshot",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("run_id" = String, Path, description = "Run"),
        ("message_index" = i64, Path, description = "How many messages are kept; 400 when there are not so many"),
        ("session_id" = String, Query, description = "Session of the run"),
    ),
    responses((status = 200, description = "The run up to there", body = Snapshot), Errors),
)]
pub async fn snapshot(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath((agent_id, run_id, message_index)): ApiPath<(String, String, String)>,
    ApiQuery(query): ApiQuery,
) -> Result<Json<Snapshot>, ApiError> {
    let index = message_index.parse::<i64>().map_err(|_| no_number(&message_index))?;
    let detail = find(&state, &actor, &agent_id, &run_id, query).await?;
    let at = index_of(index, &detail.messages)?;
    Ok(Json(checkpoint::snapshot(detail, at)))
}

async fn find(
    state: &UserState,
    actor: &Actor,
    agent_id: &str,
    run_id: &str,
    mut query: Fields,
) -> Result<RunDetail, ApiError> {
    let session_id = query.required("session_id");
    query.finish()?;
    let run = lookup::run_of(&state.service, actor, agent_id, run_id, Some(&session_id)).await?;
    Ok(state.service.detail(&run.run_id, actor.scope()).await?)
}

fn no_number(text: &str) -> ApiError {
    ApiError::validation(vec![FieldError {
        kind: "int_parsing",
        loc: vec!["path".to_owned(), "message_index".to_owned()],
        msg: "Input should be a valid integer, unable to parse string as an integer".to_owned(),
        input: text.into(),
        ctx: None,
    }])
}
