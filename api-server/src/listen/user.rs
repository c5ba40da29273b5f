//! The user port: router and middleware.
//!
//! A request is authenticated before its body is read. Bodies are at most 1 MiB, those with uploads 32 MiB.

use std::panic::AssertUnwindSafe;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt as _;
use http::header::X_CONTENT_TYPE_OPTIONS;
use http::{HeaderValue, StatusCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::rest;
use crate::auth::actor::{admit, authenticate};
use crate::domain::Service;
use crate::routes::error::{ApiError, panicked, unknown_path, wrong_method};
use crate::routes::state::{UserSettings, UserState};
use crate::routes::{agents, databases, metrics, os, queue, runs, sessions};

/// Largest body.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Largest body of a route that takes files.
const MAX_UPLOAD_BYTES: usize = 32 << 20;

/// The router of the user port.
pub fn router(service: Service, settings: UserSettings) -> Router {
    let state = UserState::new(service, settings);
    let (protected, _) = protected().split_for_parts();
    let (upkeep, _) = upkeep().split_for_parts();
    let (public, _) = public().split_for_parts();
    let hidden = Router::new()
        .route("/", get(os::landing::landing))
        .route("/docs", get(os::docs::docs))
        .route("/openapi.json", get(os::docs::openapi_json));
    protected
        .route_layer(from_fn_with_state(state.clone(), enter))
        .merge(upkeep.route_layer(from_fn_with_state(state.clone(), enter_without_record)))
        .merge(public)
        .merge(hidden)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), around))
        .with_state(state)
}

/// All operations of the OpenAPI document.
#[must_use]
pub fn operations() -> OpenApiRouter<UserState> {
    public().merge(protected()).merge(upkeep())
}

/// What needs no credential.
fn public() -> OpenApiRouter<UserState> {
    OpenApiRouter::new().routes(routes!(os::health::health)).routes(routes!(os::info::info))
}

/// What needs one, but not a record of the right schema.
fn upkeep() -> OpenApiRouter<UserState> {
    OpenApiRouter::new()
        .routes(routes!(agents::list::list))
        .routes(routes!(agents::get::get))
        .routes(routes!(os::config::config))
        .routes(routes!(databases::migrate::all))
        .routes(routes!(databases::migrate::one))
}

/// What needs both.
fn protected() -> OpenApiRouter<UserState> {
    OpenApiRouter::new()
        .routes(routes!(runs::create::create))
        .layer(DefaultBodyLimit::max(MAX_UPLOAD_BYTES))
        .routes(routes!(runs::all::all))
        .routes(routes!(runs::all::find))
        .routes(routes!(runs::list::list))
        .routes(routes!(runs::get::get))
        .routes(routes!(runs::cancel::cancel))
        .routes(routes!(runs::resume::resume))
        .routes(routes!(runs::continuing::go_on))
        .routes(routes!(runs::checkpoints::list))
        .routes(routes!(runs::checkpoints::snapshot))
        .routes(routes!(sessions::list::list, sessions::create::create, sessions::delete_many::delete_many))
        .routes(routes!(sessions::get::get, sessions::update::update, sessions::delete::delete))
        .routes(routes!(sessions::rename::rename))
        .routes(routes!(sessions::fork::fork))
        .routes(routes!(sessions::runs::runs))
        .routes(routes!(sessions::run_previews::run_previews))
        .routes(routes!(sessions::run::run))
        .routes(routes!(metrics::days::days))
        .routes(routes!(metrics::refresh::refresh))
        .routes(routes!(metrics::refresh::status))
        .routes(routes!(queue::stats::stats))
        .routes(routes!(queue::jobs::list))
        .routes(routes!(queue::jobs::get))
        .routes(routes!(queue::requeue::requeue))
}

/// The way in for who needs a credential and the record. One layer for all of it: each costs every request an allocation
/// or two.
async fn enter(State(state): State<UserState>, request: Request, next: Next) -> Result<Response, ApiError> {
    let request = identified(&state, request)?;
    let handle = |request| async move {
        let handled = with_schema(&state, request, next).await;
        handled.unwrap_or_else(IntoResponse::into_response)
    };
    Ok(rest::read_rest(request, handle).await)
}

/// The same without the record.
async fn enter_without_record(
    State(state): State<UserState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let request = identified(&state, request)?;
    Ok(rest::read_rest(request, |request| next.run(request)).await)
}

/// Puts the actor into the request, or answers 401 before the body is read.
fn identified(state: &UserState, request: Request) -> Result<Request, ApiError> {
    let (mut parts, body) = request.into_parts();
    let actor = authenticate(&state.settings.authentication, &parts)?;
    parts.extensions.insert(actor);
    Ok(Request::from_parts(parts, body))
}

/// Refuses what reads or writes a record whose schema is not this program's.
async fn with_schema(state: &UserState, request: Request, next: Next) -> Result<Response, ApiError> {
    state.service.check_schema().await?;
    let response = next.run(request).await;
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        state.service.check_schema_again().await?;
    }
    Ok(response)
}

/// What holds for every path. One layer for all of it, as above.
async fn around(State(state): State<UserState>, mut request: Request, next: Next) -> Response {
    DefaultBodyLimit::max(MAX_BODY_BYTES).apply(&mut request);
    let mut response = match kept_out(&state, request) {
        Ok(request) => AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(panicked),
        Err(refusal) => refusal.into_response(),
    };
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// In local mode: refuses what a browser sends for a foreign page.
fn kept_out(state: &UserState, request: Request) -> Result<Request, ApiError> {
    let (parts, body) = request.into_parts();
    admit(&state.settings.authentication, &parts)?;
    Ok(Request::from_parts(parts, body))
}
