//! The queue of accepted runs.

pub mod jobs;
pub mod requeue;
pub mod stats;

use cadre_protocol::problem::ErrorCode;

use crate::auth::actor::Actor;
use crate::routes::error::ApiError;

/// The queue shows everybody's runs.
///
/// # Errors
/// 403 for callers who may not see everything.
pub fn admins_only(actor: &Actor) -> Result<(), ApiError> {
    if actor.admin {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::Forbidden, "Job queue operations require an admin scope"))
}
