//! The wiring: parts into a service, listeners, an orderly stop. Shared by the server and by `cadre dev`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::serve::ListenerExt as _;
use cadre_gateway::Gateway;
use cadre_store::Store;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::auth::pod::Authenticate;
use crate::catalog::Catalog;
use crate::domain::{Limits, Parts, Service};
use crate::listen::admin::{self, AdminState};
use crate::listen::serve::Bounds;
use crate::listen::worker::{self, WorkerState};
use crate::listen::{self, user};
use crate::metrics::Metrics;
use crate::operator_port::feed::Feed;
use crate::placement::Placement;
use crate::routes::state::UserSettings;
use crate::telemetry::Traces;
use crate::worker::WorkerPort;
use crate::worker::binding::Bindings;

/// Longest time for requests in flight when the server stops.
const FINISH: Duration = Duration::from_secs(20);
/// Longest time for what workers have sent to become durable after that.
const LEAVE: Duration = Duration::from_secs(5);

/// What a server is made from.
pub struct ServerParts {
    /// The record, its schema up to date.
    pub store: Arc<dyn Store>,
    /// What there is.
    pub catalog: Arc<dyn Catalog>,
    /// The maker of workers.
    pub placement: Arc<dyn Placement>,
    /// Models and tools.
    pub gateway: Arc<Gateway>,
    /// Who calls at the worker port.
    pub authenticate: Arc<dyn Authenticate>,
    /// Which sessions callers' workers serve.
    pub bindings: Arc<dyn Bindings>,
    /// Bounds.
    pub limits: Limits,
    /// Namespace whose agents have ids without a dot.
    pub default_namespace: String,
    /// Where traces of runs go.
    pub traces: Traces,
    /// How the user port presents itself. Its `shutdown` is replaced by the server's.
    pub user: UserSettings,
}

/// Where the worker port is.
pub enum WorkerListener {
    /// A port.
    Tcp(TcpListener),
    /// A socket that only this user can reach.
    Unix(UnixListener),
}

/// Open listeners.
pub struct Listeners {
    /// The user port.
    pub user: TcpListener,
    /// The worker port.
    pub worker: WorkerListener,
    /// Health and metrics.
    pub admin: Option<TcpListener>,
}

/// The service of these parts, and the state of its worker port.
#[must_use]
pub fn assemble(parts: ServerParts) -> (Service, WorkerState, UserSettings) {
    let ServerParts { store, catalog, placement, gateway, authenticate, bindings, limits, .. } = parts;
    let ServerParts { default_namespace, traces, mut user, .. } = parts;
    let metrics = Metrics::default();
    let service = Service::new(Parts { store, catalog, placement, limits, default_namespace, metrics, traces });
    let feed = Feed { service: service.clone(), gateway: gateway.clone() };
    let port = WorkerPort { service: service.clone(), gateway, bindings };
    user.shutdown = service.stopping().clone();
    (service, WorkerState { port, feed, authenticate }, user)
}

/// Serves until `stop` fires, then finishes what is in flight and closes the record.
///
/// # Errors
/// When a listener fails.
pub async fn serve(parts: ServerParts, listeners: Listeners, stop: CancellationToken) -> anyhow::Result<()> {
    let store = parts.store.clone();
    let preparing = prepare(parts.gateway.clone(), parts.catalog.clone(), stop.clone());
    let (service, worker_state, mut user_settings) = assemble(parts);
    let closing = CancellationToken::new();
    let closed = CancellationToken::new();
    user_settings.shutdown = closing.clone();
    // Describing the routes takes as long as looking at the record.
    let of_router = service.clone();
    let user = tokio::task::spawn_blocking(move || user::router(of_router, user_settings));
    service.start_when_current().await;
    let user = user.await.context("the user port has no router")?;
    let mut user = tokio::spawn(tcp(listeners.user, user, closing.clone()));
    let worker = worker::router(worker_state);
    let mut worker = match listeners.worker {
        WorkerListener::Tcp(listener) => tokio::spawn(tcp(listener, worker, closed.clone())),
        WorkerListener::Unix(listener) => tokio::spawn(unix(listener, worker, closed.clone())),
    };
    let admin = listeners.admin.map(|listener| {
        let admin = admin::router(AdminState::new(service.clone()));
        tokio::spawn(tcp(listener, admin, closed.clone()))
    });
    // After the listeners: nobody should wait for what only some models need.
    let preparing = tokio::spawn(preparing);
    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = &mut user => ended.context("the user listener failed"),
        ended = &mut worker => ended.context("the worker listener failed"),
    };
    // No further callers; streams end, so that their clients go to another replica; whoever waits for an answer gets
    // it, since workers are still connected.
    tracing::info!("stopping");
    preparing.abort();
    closing.cancel();
    if !user.is_finished() && tokio::time::timeout(FINISH, &mut user).await.is_err() {
        tracing::warn!(seconds = FINISH.as_secs(), "requests were still in flight");
    }
    if tokio::time::timeout(LEAVE, service.stop()).await.is_err() {
        tracing::warn!(seconds = LEAVE.as_secs(), "workers' frames were still in flight");
    }
    closed.cancel();
    for server in [Some(worker), admin].into_iter().flatten() {
        server.abort();
    }
    store.close().await;
    outcome
}

/// Lets the gateway get ready for the models that there are, until it is.
async fn prepare(gateway: Arc<Gateway>, catalog: Arc<dyn Catalog>, stop: CancellationToken) {
    let mut changes = catalog.changes();
    while !gateway.prepare(catalog.models().iter().map(AsRef::as_ref)).await {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

async fn tcp(listener: TcpListener, router: Router, closing: CancellationToken) {
    let listener = listener.tap_io(|stream| {
        // Small frames must not wait for company.
        let _ = stream.set_nodelay(true);
    });
    listen::serve::serve(listener, router, Bounds::default(), closing).await;
}

async fn unix(listener: UnixListener, router: Router, closing: CancellationToken) {
    listen::serve::serve(listener, router, Bounds::default(), closing).await;
}
