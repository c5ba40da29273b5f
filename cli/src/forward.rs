//! A port-forward to the API server's pod, made anew for each connection: a pod that was replaced is found again.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::ReadBufCursor;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Portforwarder};
use kube::{Api, Client};
use tokio::io::DuplexStream;
use tower::Service;

/// Labels of the API server's pods.
const SELECTOR: &str = "app.kubernetes.io/name=cadre,app.kubernetes.io/component=api-server";
/// Its user port.
const PORT: u16 = 7777;

/// Why there is no way into the cluster.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// No pod.
    #[error("no ready pod of Cadre's API server in namespace {0}; is it installed there? (--system-namespace)")]
    NoPod(String),
    /// The kube-apiserver says no.
    #[error("{0}")]
    Kube(#[from] Box<kube::Error>),
    /// No stream.
    #[error("pod {0} has no port {PORT}")]
    NoPort(String),
}

/// Makes connections.
#[derive(Clone)]
pub struct PortForward {
    client: Client,
    namespace: String,
}

impl PortForward {
    /// To the API server in this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    async fn connect(self) -> Result<Forwarded, ForwardError> {
        let pods: Api<Pod> = Api::namespaced(self.client, &self.namespace);
        let found = pods.list(&ListParams::default().labels(SELECTOR)).await.map_err(Box::new)?;
        let ready = found.items.into_iter().find(is_ready).and_then(|pod| pod.metadata.name);
        let name = ready.ok_or(ForwardError::NoPod(self.namespace))?;
        let mut forwarder = pods.portforward(&name, &[PORT]).await.map_err(Box::new)?;
        let stream = forwarder.take_stream(PORT).ok_or(ForwardError::NoPort(name))?;
        Ok(Forwarded { stream: TokioIo::new(stream), forwarder })
    }
}

/// Whether a pod takes requests.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready =
        |condition: &k8s_openapi::api::core::v1::PodCondition| condition.type_ == "Ready" && condition.status == "True";
    pod.metadata.deletion_timestamp.is_none() && conditions.is_some_and(|all| all.iter().any(ready))
}

impl Service<Uri> for PortForward {
    type Response = Forwarded;
    type Error = ForwardError;
    type Future = Pin<Box<dyn Future<Output = Result<Forwarded, ForwardError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ForwardError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

/// A connection.
pub struct Forwarded {
    stream: TokioIo<DuplexStream>,
    forwarder: Portforwarder,
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        self.forwarder.abort();
    }
}

impl Connection for Forwarded {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Forwarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Forwarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(ready: &str, going: bool) -> Pod {
        let mut metadata = serde_json::json!({"name": "a"});
        if going {
            metadata["deletionTimestamp"] = "2026-11-30T00:00:00Z".into();
        }
        let status = serde_json::json!({"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]});
        serde_json::from_value(serde_json::json!({"metadata": metadata, "status": status})).unwrap()
    }

    #[test]
    fn only_ready_pods_that_stay_are_used() {
        assert!(is_ready(&pod("True", false)));
        assert!(!is_ready(&pod("False", false)));
        assert!(!is_ready(&pod("True", true)));
        assert!(!is_ready(&Pod::default()));
    }
}
