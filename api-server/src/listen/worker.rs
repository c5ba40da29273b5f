//! The worker port: the workers' link and the operator's door. Every request is authenticated before its body is read.

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use cadre_protocol::feed::{FEED_PATH, RUNS_PATH};
use cadre_protocol::problem::{ErrorCode, Problem};
use cadre_protocol::worker::{LINK_PATH, MAX_FRAME_BYTES, READ_BYTES};
use http::{StatusCode, header};

use crate::auth::pod::{Authenticate, Caller};
use crate::operator_port::{self, feed::Feed};
use crate::worker::{WorkerPort, link};

/// Largest body: a Run object is at most 1.5 MiB in etcd.
const MAX_BODY_BYTES: usize = 4 << 20;

/// State of the router.
#[derive(Clone)]
pub struct WorkerState {
    /// The link's parts.
    pub port: WorkerPort,
    /// The operator's feed.
    pub feed: Feed,
    /// Who calls.
    pub authenticate: Arc<dyn Authenticate>,
}

/// The router of the worker port.
pub fn router(state: WorkerState) -> Router {
    Router::new()
        .route(LINK_PATH, get(open_link))
        .route(RUNS_PATH, post(operator_port::submit::submit))
        .route(&format!("{RUNS_PATH}/{{namespace}}/{{uid}}"), get(operator_port::look::look))
        .route(&format!("{RUNS_PATH}/{{namespace}}/{{uid}}/cancel"), post(operator_port::cancel::cancel))
        .route(FEED_PATH, get(operator_port::feed::follow))
        .fallback(|| async { problem(ErrorCode::NotFound, "not found") })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn_with_state(state.clone(), identify))
        .with_state(state)
}

/// Lets nobody pass who is not known. The body, whatever it is, stays unread until then.
async fn identify(State(state): State<WorkerState>, mut request: Request, next: Next) -> Response {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let Some(token) = token else {
        return problem(ErrorCode::Unauthorized, "a bearer token is required");
    };
    match state.authenticate.authenticate(token).await {
        Ok(caller) => {
            if let Err(error) = state.port.service.check_schema().await {
                return problem(error.code(), &error.to_string());
            }
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refused) => {
            state.port.service.metrics().token_refused(refused.category());
            tracing::debug!(category = refused.category(), "token refused");
            problem(ErrorCode::Unauthorized, "the token is not accepted")
        }
    }
}

async fn open_link(
    State(state): State<WorkerState>,
    Extension(caller): Extension<Caller>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if caller == Caller::Operator {
        return problem(ErrorCode::Forbidden, "the operator is no worker");
    }
    upgrade
        .max_message_size(MAX_FRAME_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .read_buffer_size(READ_BYTES)
        .on_upgrade(move |socket| link::serve(state.port, caller, socket))
}

/// An error answer.
#[must_use]
pub fn problem(code: ErrorCode, detail: &str) -> Response {
    let body = Problem {
        detail: detail.to_owned(),
        error_id: Some(code.as_str().to_owned()),
        error_type: Some(code.as_str().to_owned()),
    };
    let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(body)).into_response()
}
