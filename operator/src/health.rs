//! Health and metrics over HTTP: `/healthz` speaks of the process only, `/readyz` names missing CRDs.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use kube::Client;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Kinds that must be there, by their plurals.
const NEEDED: [&str; 4] = ["agents", "models", "runs", "sandboxes"];
const LOOK: Duration = Duration::from_secs(2);
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// What health speaks of.
#[derive(Debug, Default)]
pub struct Health {
    missing: RwLock<Option<Vec<&'static str>>>,
}

impl Health {
    fn set(&self, missing: Vec<&'static str>) {
        *self.missing.write().unwrap_or_else(PoisonError::into_inner) = Some(missing);
    }

    fn answer(&self) -> (StatusCode, String) {
        match &*self.missing.read().unwrap_or_else(PoisonError::into_inner) {
            None => (StatusCode::SERVICE_UNAVAILABLE, "the Kubernetes API has not answered yet\n".into()),
            Some(missing) if missing.is_empty() => (StatusCode::OK, "ready\n".into()),
            Some(missing) => {
                let names: Vec<_> = missing.iter().map(|plural| format!("{plural}.cadre.dev")).collect();
                (StatusCode::SERVICE_UNAVAILABLE, format!("missing CRDs: {}\n", names.join(", ")))
            }
        }
    }

    /// Waits until all CRDs are there.
    pub async fn wait_for_crds(&self, client: &Client) {
        loop {
            match timeout(ANSWER, served(client)).await {
                Ok(Ok(served)) => {
                    let missing: Vec<_> =
                        NEEDED.into_iter().filter(|plural| !served.iter().any(|name| name == plural)).collect();
                    let done = missing.is_empty();
                    if !done {
                        tracing::warn!(missing = missing.join(","), "waiting for CRDs");
                    }
                    self.set(missing);
                    if done {
                        return;
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "could not ask which kinds there are"),
                Err(_) => tracing::warn!("the Kubernetes API does not answer"),
            }
            sleep(LOOK).await;
        }
    }
}

async fn served(client: &Client) -> Result<Vec<String>, kube::Error> {
    match client.list_api_group_resources("cadre.dev/v1alpha1").await {
        Ok(list) => Ok(list.resources.into_iter().map(|resource| resource.name).collect()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Serves until told to stop.
///
/// # Errors
/// The listener's.
pub async fn serve(
    listener: TcpListener,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(|State(health): State<Arc<Health>>| async move { health.answer() }))
        .with_state(health)
        .route("/metrics", get(|| async move { metrics.text() }));
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_crds_are_named() {
        let health = Health::default();
        assert_eq!(health.answer().0, StatusCode::SERVICE_UNAVAILABLE);
        health.set(vec!["runs"]);
        assert_eq!(health.answer(), (StatusCode::SERVICE_UNAVAILABLE, "missing CRDs: runs.cadre.dev\n".into()));
        health.set(Vec::new());
        assert_eq!(health.answer().0, StatusCode::OK);
    }
}
