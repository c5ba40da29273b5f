//! Health and metrics, on a port of their own.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::domain::Service;

/// State of the router.
#[derive(Clone)]
pub struct AdminState {
    service: Service,
    registry: Arc<Registry>,
}

impl AdminState {
    /// Shows this service.
    #[must_use]
    pub fn new(service: Service) -> Self {
        let mut registry = Registry::default();
        service.metrics().register(&mut registry);
        Self { service, registry: Arc::new(registry) }
    }
}

/// The router of the admin port.
pub fn router(state: AdminState) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(state)
}

/// Whether requests can be served: the database answers with the right schema, the resources are known, and the server
/// is not stopping.
async fn ready(State(state): State<AdminState>) -> Response {
    let unready = |reason: String| (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response();
    if state.service.stopping().is_cancelled() {
        return unready("stopping".to_owned());
    }
    if !state.service.catalog().synced() {
        return unready("resources are not known yet".to_owned());
    }
    match state.service.store().check().await {
        Ok(()) => "ok\n".into_response(),
        Err(error) => unready(error.category().to_owned()),
    }
}

async fn metrics(State(state): State<AdminState>) -> Response {
    let (workers, running) = state.service.worker_counts();
    let waiting = state.service.store().waiting_count().await.ok();
    state.service.metrics().observe(workers, running, waiting);
    let mut text = String::new();
    if encode(&mut text, &state.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}
