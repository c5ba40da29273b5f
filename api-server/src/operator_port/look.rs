//! `GET /operator/v1/runs/{namespace}/{uid}`: a run that the feed tells nothing of.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::report::report;
use super::{feed, only_operator, refusal};
use crate::auth::pod::Caller;
use crate::domain::DomainError;
use crate::listen::worker::WorkerState;

/// Answers the run's state. 404 when the object never became a run, or the run is forgotten.
pub async fn look(
    State(state): State<WorkerState>,
    Extension(caller): Extension<Caller>,
    Path((namespace, uid)): Path<(String, String)>,
) -> Response {
    if let Some(forbidden) = only_operator(&caller) {
        return forbidden;
    }
    let service = &state.port.service;
    let found = async {
        let absent = || DomainError::RunNotFound(uid.clone());
        let run = service.store().run_of_object(&namespace, &uid).await?.ok_or_else(absent)?;
        let waiting_on = service.store().waiting_on(&run.run_id).await?.map(|run_id| run_id.to_string());
        let approvals = feed::approvals(service, &run).await?;
        report(&run, waiting_on, None, &approvals).ok_or_else(absent)
    };
    match found.await {
        Ok(report) => Json(report).into_response(),
        Err(error) => refusal(&error),
    }
}
