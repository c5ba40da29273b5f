//! Finding runs: a run under another agent, in another session or of another principal is not there.

use cadre_protocol::ids::{RunId, SessionId};
use cadre_store::rows::{RunDetail, RunFilter, RunRow};

use crate::auth::actor::Actor;
use crate::domain::{DomainError, Service};
use crate::routes::error::ApiError;

/// Most rows of one look-up in the record.
const PAGE: u64 = 1000;

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

/// A session of the actor.
///
/// # Errors
/// 404, or what the record says.
pub async fn session_of(service: &Service, actor: &Actor, session_id: &str) -> Result<SessionId, ApiError> {
    let id = SessionId::new(session_id).map_err(|_| ApiError::session_not_found(session_id))?;
    service.session(&id, actor.scope()).await?;
    Ok(id)
}

/// All runs that match, oldest first, as a conversation is read.
///
/// # Errors
/// The record's.
pub async fn all_runs(service: &Service, filter: RunFilter) -> Result<Vec<RunRow>, DomainError> {
    let mut runs = Vec::new();
    loop {
        let offset = u64::try_from(runs.len()).unwrap_or(u64::MAX);
        let (page, total) = service.list(RunFilter { offset, limit: PAGE, ..filter.clone() }).await?;
        let last = page.is_empty();
        runs.extend(page);
        if last || u64::try_from(runs.len()).unwrap_or(u64::MAX) >= total {
            break;
        }
    }
    runs.reverse();
    Ok(runs)
}

/// The same with messages and tool calls. A run that is deleted meanwhile is left out.
///
/// # Errors
/// The record's.
pub async fn details(service: &Service, actor: &Actor, runs: Vec<RunRow>) -> Result<Vec<RunDetail>, DomainError> {
    let mut found = Vec::with_capacity(runs.len());
    for run in runs {
        match service.detail(&run.run_id, actor.scope()).await {
            Ok(detail) => found.push(detail),
            Err(DomainError::RunNotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
