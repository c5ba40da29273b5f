//! `POST /operator/v1/runs`: a Run object becomes a run, once.

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use cadre_protocol::feed::SubmitRun;
use cadre_protocol::ids::{ComponentRef, SessionId, hex_sha256};
use cadre_protocol::problem::ErrorCode;
use cadre_store::rows::{IdempotencyKey, Origin};

use super::report::report;
use super::{feed, only_operator, principal, refusal};
use crate::auth::pod::Caller;
use crate::domain::{DomainError, NewFile, Submit};
use crate::listen::worker::{WorkerState, problem};

/// The answer to a session that is not the namespace's.
const FOREIGN: &str = "spec.session.id: Run objects of this namespace can't join this session: name another, or none";

/// Submits; answers the run's state, the first time and any later time.
pub async fn submit(
    State(state): State<WorkerState>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<SubmitRun>, JsonRejection>,
) -> Response {
    if let Some(forbidden) = only_operator(&caller) {
        return forbidden;
    }
    let Json(run) = match body {
        Ok(run) => run,
        Err(error) => return problem(ErrorCode::Validation, &error.body_text()),
    };
    let answered = async {
        let submitted = state.port.service.submit(intent(run)?).await?;
        let waiting_on = submitted.waiting_on.map(|run_id| run_id.to_string());
        let approvals = feed::approvals(&state.port.service, &submitted.run).await?;
        let report = report(&submitted.run, waiting_on, None, &approvals);
        report.ok_or_else(|| DomainError::Invalid("the run has another origin".to_owned()))
    };
    match answered.await {
        Ok(report) => Json(report).into_response(),
        // The object is immutable: no later try can name another agent or session.
        Err(error @ DomainError::OtherAgentsSession(_)) => {
            problem(ErrorCode::Validation, &format!("spec.session.id: {error}"))
        }
        // The object is immutable: no later try can have another session. Whose it is stays unsaid.
        Err(DomainError::ForeignSession) => problem(ErrorCode::Validation, FOREIGN),
        Err(error) => refusal(&error),
    }
}

fn intent(run: SubmitRun) -> Result<Submit, DomainError> {
    // The object is immutable, so its UID alone says what is asked; a repeated submission can't differ.
    let idempotency = IdempotencyKey { key: run.uid.clone(), body_sha256: hex_sha256(run.uid.as_bytes()) };
    let session_id =
        run.session_id.map(SessionId::new).transpose().map_err(|error| DomainError::Invalid(error.to_string()))?;
    let files = run.files.into_iter().map(|file| NewFile {
        name: file.name,
        media_type: file.media_type,
        bytes: Bytes::from(file.content),
    });
    let component = ComponentRef::agent(&run.namespace, run.agent);
    Ok(Submit {
        session_id,
        files: files.collect(),
        metadata: run.metadata,
        session_state: run.session_state,
        dependencies: run.dependencies,
        output_schema: run.output_schema,
        timeout_seconds: run.timeout_seconds,
        retries: run.retries,
        origin: Origin::RunObject { uid: run.uid, name: run.name },
        idempotency: Some(idempotency),
        ..Submit::text(component, principal(&run.namespace), run.text)
    })
}
