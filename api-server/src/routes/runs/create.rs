//! `POST /agents/{agent_id}/runs`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use cadre_protocol::ids::RunId;
use cadre_store::rows::EventChunk;
use futures::stream::BoxStream;
use http::{HeaderMap, StatusCode};
use utoipa::ToSchema;

use super::request::{self, Delivery, RunRequest};
use crate::auth::actor::Actor;
use crate::domain::hub::{Listener, Wants};
use crate::domain::{DomainError, Submitted};
use crate::render::output::{Accepted, RunOutput, output};
use crate::routes::error::ApiError;
use crate::routes::extract::ApiPath;
use crate::routes::form::ApiForm;
use crate::routes::responses::{Busy, Conflicts, Errors, ServerSentEvent};
use crate::routes::state::UserState;
use crate::streams::body;
use crate::streams::resume::Plan;
use crate::streams::shares::{StreamSeat, seated};

/// Names the run before its first event or its end is there.
const RUN_ID: &str = "x-run-id";

/// The form, for the OpenAPI document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "read by the OpenAPI document only")]
pub struct CreateRunForm {
    /// What the agent is asked.
    #[schema(min_length = 1)]
    message: String,
    /// Whether the answer is a stream of events.
    #[schema(default = true)]
    stream: Option<bool>,
    /// `false`: only `RunContent` events.
    #[schema(default = true)]
    stream_events: Option<bool>,
    /// Whether to answer at once: 202, or with `stream` a stream as well.
    #[schema(default = false)]
    background: Option<bool>,
    /// Session to join; a new one when absent.
    session_id: Option<String>,
    /// The user on whose behalf the caller asks.
    user_id: Option<String>,
    /// The caller's id for the run; 409 when it is taken.
    run_id: Option<String>,
    /// Files.
    #[schema(value_type = Option<Vec<String>>, format = Binary)]
    files: Option<Vec<String>>,
    /// JSON object, merged over the session's state.
    session_state: Option<String>,
    /// JSON object: values that instructions may use.
    dependencies: Option<String>,
    /// JSON object kept with the run.
    metadata: Option<String>,
    /// JSON Schema of the answer.
    output_schema: Option<String>,
}

/// Run an agent.
///
/// The run is durable once this answers, and it goes on when the client goes away.
#[utoipa::path(
    post, path = "/agents/{agent_id}/runs", tag = "Runs", operation_id = "create_agent_run",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and request: the same run"),
    ),
    request_body(content((CreateRunForm = "multipart/form-data"), (CreateRunForm = "application/x-www-form-urlencoded"))),
    responses(
        (status = 200, description = "The run when it has ended, or its events", content(
            (RunOutput = "application/json"), (ServerSentEvent = "text/event-stream"))),
        (status = 202, description = "The run was accepted and has not ended", body = Accepted),
        Errors, Conflicts, Busy,
    ),
)]
pub async fn create(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath(agent_id): ApiPath<String>,
    headers: HeaderMap,
    form: ApiForm,
) -> Result<Response, ApiError> {
    let component = state.service.component(&agent_id);
    let RunRequest { submit, delivery } = request::parse(form, &headers, component, actor.principal)?;
    // Who may not wait for it here gets no run either.
    let seat = match delivery.seat(&state, &submit.component.namespace) {
        Ok(seat) => seat,
        Err(full) => {
            let known_run = state.service.accepted_before(&submit).await?;
            return known(&state, known_run, delivery, full).await;
        }
    };
    let wants = seat.as_ref().map(|_| if delivery.stream { Wants::Events } else { Wants::End });
    let (submitted, listener) = state.service.submit_for(submit, wants).await?;
    let response = match seat {
        Some(seat) if delivery.stream => {
            let plan = Plan { content_only: delivery.content_only, ..Plan::default() };
            body::response(events(&state, &submitted, listener, seat), plan, state.settings.shutdown.clone())
        }
        Some(_waiting) => ended(&state, &submitted, listener).await,
        None => accepted(&submitted),
    };
    Ok(named(response, &submitted.run.run_id))
}

/// The answer to a request that may not wait here, if its run was accepted before: what takes no waiting.
pub(super) async fn known(
    state: &UserState,
    submitted: Option<Submitted>,
    delivery: Delivery,
    full: ApiError,
) -> Result<Response, ApiError> {
    let Some(submitted) = submitted else { return Err(full) };
    let response = if delivery.stream {
        full.into_response()
    } else if submitted.run.status.is_at_rest() {
        ended(state, &submitted, None).await
    } else {
        accepted(&submitted)
    };
    Ok(named(response, &submitted.run.run_id))
}

/// An answer that names its run: whoever gets an error too can ask for the run that was accepted.
pub(super) fn named(mut response: Response, run_id: &RunId) -> Response {
    if let Ok(run_id) = run_id.as_str().parse() {
        response.headers_mut().insert(RUN_ID, run_id);
    }
    response
}

fn events(
    state: &UserState,
    submitted: &Submitted,
    listener: Option<Listener>,
    seat: StreamSeat,
) -> BoxStream<'static, EventChunk> {
    let chunks = match listener {
        Some(listener) => state.service.stream_from_start(&submitted.run.run_id, listener),
        None => state.service.stream_of(&submitted.run, None),
    };
    seated(chunks, seat)
}

/// A replayed run that has ended meanwhile says so in its status.
pub(super) fn accepted(submitted: &Submitted) -> Response {
    let waiting_on = submitted.waiting_on.as_ref().map(ToString::to_string);
    (StatusCode::ACCEPTED, Json(Accepted::new(&submitted.run, waiting_on))).into_response()
}

/// Waits for the end; 202 when that takes too long, or the server stops.
pub(super) async fn ended(state: &UserState, submitted: &Submitted, listener: Option<Listener>) -> Response {
    let (service, run_id, wait) = (&state.service, &submitted.run.run_id, state.settings.wait);
    let ended = match listener {
        Some(listener) => service.wait_for(run_id, listener, wait).await,
        None => service.wait_end(run_id, wait).await,
    };
    match ended {
        Ok(detail) => Json(output(detail)).into_response(),
        Err(DomainError::NotEnded(_, last)) => {
            let run = last.as_deref().unwrap_or(&submitted.run);
            (StatusCode::ACCEPTED, Json(Accepted::new(run, None))).into_response()
        }
        Err(error) => ApiError::from(error).into_response(),
    }
}
