//! `POST /agents/{agent_id}/runs/{run_id}/continue`.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use utoipa::ToSchema;

use super::answers;
use super::create;
use super::lookup;
use super::request;
use crate::auth::actor::Actor;
use crate::domain::boundary::ContinueFrom;
use crate::domain::continuing::{Continue, Continued};
use crate::render::output::{Accepted, RunOutput};
use crate::routes::error::ApiError;
use crate::routes::extract::ApiPath;
use crate::routes::fields::Fields;
use crate::routes::form::ApiForm;
use crate::routes::responses::{Busy, Conflicts, Errors};
use crate::routes::state::UserState;
use crate::streams::body;
use crate::streams::resume::Plan;
use crate::streams::shares::{StreamSeat, seated};

/// The form, for the OpenAPI document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "read by the OpenAPI document only")]
pub struct ContinueRunForm {
    /// For a paused run, JSON list of its tool executions with the answers: `confirmed` (and `confirmation_note`), values in
    /// `user_input_schema`, or `result`. 409 for other runs.
    tools: Option<String>,
    /// The same as a JSON list of requirements.
    requirements: Option<String>,
    /// What is added: for a new run its question, for one that goes on a word on the way.
    input: Option<String>,
    /// `end`, `last_user`, or how many messages are kept; never parts a tool call from its result.
    #[schema(default = "end")]
    continue_from: Option<String>,
    /// Whether to begin a new run where the old one could go on.
    #[schema(default = false)]
    fork: Option<bool>,
    /// Whether to give the last answer anew, in a new run.
    #[schema(default = false)]
    regenerate: Option<bool>,
    /// With `regenerate`: whether the old run leaves the session's history; true when absent.
    replace_original: Option<bool>,
    /// With `regenerate`: a word on the new answer.
    additional_instructions: Option<String>,
    /// Session of the run; 400 without it.
    session_id: Option<String>,
    /// The user on whose behalf the caller asks; for a new run, the old one's when absent.
    user_id: Option<String>,
    /// Whether the answer is a stream of events.
    #[schema(default = true)]
    stream: Option<bool>,
    /// `false`: only `RunContent` events.
    #[schema(default = true)]
    stream_events: Option<bool>,
    /// Whether to answer at once: 202, or with `stream` a stream as well.
    #[schema(default = false)]
    background: Option<bool>,
}

/// Go on from a run.
///
/// A run that failed goes on under its own id at its last good step: what its tools did is not done again, and its events
/// go on behind the last one. One that has completed stays as it is, and a new run begins with what is kept of its
/// conversation, then `input`; so it is for a run that failed with `fork`, with an earlier `continue_from`, or when a Run
/// object made it. A run that was cancelled or has not ended is 409. With an `Idempotency-Key` that was used for the same
/// request, the run that came of it is answered, as it is now.
///
/// A paused run goes on under its own id once all calls that it waits for are answered. Each answer is compared with the
/// call that waits (400 if name or arguments differ); answers are merged, and while calls are open the run stays PAUSED.
/// The same answers once more see what comes of them; others are 409.
#[utoipa::path(
    post, path = "/agents/{agent_id}/runs/{run_id}/continue", tag = "Runs", operation_id = "continue_agent_run",
    params(
        ("agent_id" = String, Path, description = "`name`, or `namespace.name`"),
        ("run_id" = String, Path, description = "Run"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and request: the same run"),
    ),
    request_body(content(
        (ContinueRunForm = "application/x-www-form-urlencoded"), (ContinueRunForm = "multipart/form-data"))),
    responses(
        (status = 200, description = "The run when it has ended, or its events from now on", content(
            (RunOutput = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The run goes on and has not ended", body = Accepted),
        Errors, Conflicts, Busy,
    ),
)]
pub async fn go_on(
    State(state): State<UserState>,
    actor: Actor,
    ApiPath((agent_id, run_id)): ApiPath<(String, String)>,
    headers: HeaderMap,
    form: ApiForm,
) -> Result<Response, ApiError> {
    let mut fields = form.fields;
    let delivery = request::delivery(&mut fields);
    let wish = Continue {
        idempotency: request::idempotency(&headers, &fields, &[], Some(&run_id))?,
        trace_parent: request::trace_parent(&headers),
        decided_by: Some(actor.principal.clone()),
        ..wish(&mut fields)?
    };
    let session_id = fields.session_id("session_id");
    fields.finish()?;
    let component = state.service.component(&agent_id);
    if state.service.agent(&component).is_none() {
        return Err(ApiError::not_found("Agent not found"));
    }
    let session_id = session_id.ok_or_else(|| ApiError::bad_request("session_id is required for this action"))?;
    let run = lookup::run_of(&state.service, &actor, &agent_id, &run_id, Some(session_id.as_str())).await;
    let run = run.map_err(|error| named(error, &run_id))?;
    let seat = match delivery.seat(&state, &component.namespace) {
        Ok(seat) => seat,
        Err(full) => {
            let known = state.service.continued_before(&run, &wish).await?;
            return create::known(&state, known, delivery, full).await;
        }
    };
    let continued = state.service.continue_run(&run.run_id, actor.scope(), wish).await?;
    let response = match seat {
        Some(seat) if delivery.stream => events(&state, &continued, seat, delivery.content_only),
        Some(_waiting) => create::ended(&state, &continued.submitted, None).await,
        None => create::accepted(&continued.submitted),
    };
    Ok(create::named(response, &continued.submitted.run.run_id))
}

fn events(state: &UserState, continued: &Continued, seat: StreamSeat, content_only: bool) -> Response {
    let Continued { submitted, after } = continued;
    let chunks = seated(state.service.stream_of(&submitted.run, *after), seat);
    let plan = Plan { after: *after, content_only, ..Plan::default() };
    body::response(chunks, plan, state.settings.shutdown.clone())
}

fn wish(fields: &mut Fields) -> Result<Continue, ApiError> {
    let text = |fields: &Fields, name: &str| fields.text(name).map(str::to_owned);
    Ok(Continue {
        answers: answers::answers(fields)?,
        decided_by: None,
        from: continue_from(fields)?,
        fork: fields.boolean("fork", false),
        regenerate: fields.boolean("regenerate", false),
        replace_original: fields.text("replace_original").is_some().then(|| fields.boolean("replace_original", true)),
        input: text(fields, "input"),
        additional_instructions: text(fields, "additional_instructions"),
        user_id: request::user_id(fields),
        ..Continue::default()
    })
}

fn continue_from(fields: &Fields) -> Result<ContinueFrom, ApiError> {
    match fields.text("continue_from").unwrap_or("end").trim() {
        "end" => Ok(ContinueFrom::End),
        "last_user" => Ok(ContinueFrom::LastUser),
        number => number.parse().map(ContinueFrom::Index).map_err(|_| {
            ApiError::bad_request("Invalid continue_from. Use 'end', 'last_user', or a numeric message index.")
        }),
    }
}

/// AgentOS's words for a run that is not there.
fn named(error: ApiError, run_id: &str) -> ApiError {
    match error.status() {
        StatusCode::NOT_FOUND => ApiError::not_found(format!("No runs found for run ID {run_id}")),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Continue, ApiError> {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut fields = Fields::of_body(pairs);
        let wish = wish(&mut fields)?;
        fields.finish().map(|()| wish)
    }

    #[test]
    fn an_empty_form_goes_on_from_the_end() {
        let wish = read(&[("tools", ""), ("input", ""), ("replace_original", "")]).unwrap();
        assert_eq!((wish.from, wish.fork, wish.answers.len()), (ContinueFrom::End, false, 0));
        assert!(wish.input.is_none() && wish.replace_original.is_none());
        let wish = read(&[("tools", "[]"), ("continue_from", " 3 "), ("replace_original", "no")]).unwrap();
        assert_eq!((wish.from, wish.answers.len(), wish.replace_original), (ContinueFrom::Index(3), 0, Some(false)));
        assert_eq!(read(&[("tools", r#"[{"tool_call_id":"c"}]"#)]).unwrap().answers.len(), 1);
    }

    #[test]
    fn wrong_fields_are_told() {
        for (name, value, status, text) in [
            ("tools", "{", 400, "Invalid JSON in tools field"),
            (
                "continue_from",
                "start",
                400,
                "Invalid continue_from. Use 'end', 'last_user', or a numeric message index.",
            ),
            ("fork", "maybe", 422, "Validation failed"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert_eq!((error.status().as_u16(), error.message()), (status, text));
        }
    }
}
