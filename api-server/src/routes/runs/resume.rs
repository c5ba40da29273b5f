//! `POST /agents/{agent_id}/runs/{run_id}/resume`.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use utoipa::ToSchema;

use super::lookup;
use crate::auth::actor::Actor;
use crate::routes::error::ApiError;
use crate::routes::extract::ApiPath;
use crate::routes::fields::Fields;
use crate::routes::form::ApiForm;
use crate::routes::responses::{Busy, Errors, ServerSentEvent};
use crate::routes::state::UserState;
use crate::streams::shares::seated;
use crate::streams::{body, resume};

/// The form, for the OpenAPI document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "read by the OpenAPI document only")]
pub struct ResumeForm {
    /// The last event that the client has; its successors follow.
    last_event_index: Option<i64>,
    /// Session of the run.
    session_id: Option<String>,
}

/// Go on with a run's events.
///
/// Live or long after its end, without a gap or a duplicate. A run that has ended begins with a `replay` frame, one that
/// goes on with `catch_up` where events were missed, and says `subscribed` once they have been sent. A run that does not
/// exist is a stream of one `error` frame, as in AgentOS.
#[utoipa::path(
    post, path = "/agents/{agent_id}/runs/{run_id}/resume", tag = "Runs", operation_id = "resume_agent_run",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("run_id" = String, Path, description = "Run"),
        ("Last-Event-ID" = Option<String>, Header, description = "As `last_event_index`, which goes before it"),
    ),
    request_body(content((ResumeForm = "application/x-www-form-urlencoded"), (ResumeForm = "multipart/form-data"))),
    responses((status = 200, description = "Its events", content((ServerSentEvent = "text/event-stream"))), Errors, Busy),
)]
pub async fn resume(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath((agent_id, run_id)): ApiPath<(String, String)>,
    headers: HeaderMap,
    form: ApiForm,
) -> Result<Response, ApiError> {
    let mut fields = form.fields;
    let after = last_event(&mut fields, &headers);
    let session_id = fields.text("session_id").map(str::to_owned);
    fields.finish()?;
    match lookup::run_of(&state.service, &actor, &agent_id, &run_id, session_id.as_deref()).await {
        Ok(run) => {
            let seat = state.streams.enter(&run.component.namespace)?;
            let chunks = seated(state.service.stream_of(&run, after), seat);
            Ok(body::response(chunks, resume::plan(&run, after), state.settings.shutdown.clone()))
        }
        Err(error) if error.status() == StatusCode::NOT_FOUND => Ok(body::single(resume::error(error.message()))),
        Err(error) => Err(error),
    }
}

/// The number of the last event that the client has; a negative one means none.
fn last_event(fields: &mut Fields, headers: &HeaderMap) -> Option<u64> {
    let header = || headers.get("last-event-id")?.to_str().ok()?.trim().parse().ok();
    match fields.integer("last_event_index") {
        Some(index) => u64::try_from(index).ok(),
        None => header(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_goes_before_the_header() {
        let mut headers = HeaderMap::new();
        headers.insert("last-event-id", "7".parse().unwrap());
        let read = |value: &str, headers: &HeaderMap| {
            last_event(&mut Fields::of_body(vec![("last_event_index".into(), value.into())]), headers)
        };
        assert_eq!(read("3", &headers), Some(3));
        assert_eq!(read("-1", &headers), None);
        assert_eq!(read("", &headers), Some(7));
        assert_eq!(read("", &HeaderMap::new()), None);
    }
}
