//! Finding runs: a run under another agent, in another session or of another principal is not there.

use cadre_protocol::ids::RunId;
use cadre_store::rows::{RunDetail, RunRow};

use crate::auth::actor::Actor;
use crate::domain::Service;
use crate::routes::error::ApiError;

/// A run of an agent; of this session, where one is named.
///
/// # Errors
/// 404 "Run not found", or what the record says.
pub async fn run_of(
    service: &Service,
    actor: &Actor,
    agent_id: &str,
    run_id: &str,
    session_id: Option<&str>,
) -> Result<RunRow, ApiError> {
    let run_id = RunId::new(run_id).map_err(|_| ApiError::run_not_found())?;
    let run = service.run(&run_id, actor.scope()).await?;
    let here = run.component == service.component(agent_id);
    let in_session = session_id.is_none_or(|id| run.session_id.as_str() == id);
    if here && in_session { Ok(run) } else { Err(ApiError::run_not_found()) }
}

/// A run with its messages and tool calls; of this session.
///
/// # Errors
/// 404 "Run not found", or what the record says.
pub async fn detail_in_session(
    service: &Service,
    actor: &Actor,
    run_id: &str,
    session_id: &str,
) -> Result<RunDetail, ApiError> {
    let run_id = RunId::new(run_id).map_err(|_| ApiError::run_not_found())?;
    let detail = service.detail(&run_id, actor.scope()).await?;
    if detail.run.session_id.as_str() == session_id { Ok(detail) } else { Err(ApiError::run_not_found()) }
}
