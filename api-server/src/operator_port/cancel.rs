//! `POST /operator/v1/runs/{namespace}/{uid}/cancel`: the Run object asks for it, or is gone.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::report::report;
use super::{only_operator, refusal};
use crate::auth::pod::Caller;
use crate::domain::DomainError;
use crate::listen::worker::WorkerState;

/// Cancels; answers the run's state. 404 when the object never became a run.
pub async fn cancel(
    State(state): State<WorkerState>,
    Extension(caller): Extension<Caller>,
    Path((namespace, uid)): Path<(String, String)>,
) -> Response {
    if let Some(forbidden) = only_operator(&caller) {
        return forbidden;
    }
    let service = &state.port.service;
    let cancelled = async {
        let absent = || DomainError::RunNotFound(uid.clone());
        let run = service.store().run_of_object(&namespace, &uid).await?.ok_or_else(absent)?;
        let run = service.cancel(&run.run_id, None).await?;
        report(&run, None, None, &[]).ok_or_else(absent)
    };
    match cancelled.await {
        Ok(report) => Json(report).into_response(),
        Err(error) => refusal(&error),
    }
}
