//! Connections: how many there may be, how long a head or a silent body may take, and an orderly end.
//!
//! Without these bounds a few hundred half-open requests hold a port's memory and descriptors for as long as their
//! sender likes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::serve::Listener;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use tower_http::timeout::TimeoutBody;

/// What a listener puts up with.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Time for a request's head, from the moment the connection is there or its last request is answered.
    pub head: Duration,
    /// Longest silence within a request's body.
    pub body_silence: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { connections: 16_384, head: Duration::from_secs(30), body_silence: Duration::from_secs(30) }
    }
}

/// Serves until `closing` fires, then lets what is in flight finish. Never fails: a listener that can't accept tries
/// again.
pub async fn serve<L: Listener>(mut listener: L, router: Router, bounds: Bounds, closing: CancellationToken) {
    let slots = Arc::new(Semaphore::new(bounds.connections));
    let open = TaskTracker::new();
    let mut closed = pin!(closing.cancelled());
    loop {
        let accepted = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await.0)
        };
        let (slot, io) = tokio::select! {
            accepted = accepted => accepted,
            () = closed.as_mut() => break,
        };
        let router = router.clone();
        let service = router.map_request(move |request: Request<Incoming>| {
            request.map(|body| Body::new(TimeoutBody::new(bounds.body_silence, body)))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .serve_connection(TokioIo::new(io), TowerToHyperService::new(service))
            .with_upgrades();
        let closing = closing.clone();
        open.spawn(async move {
            let mut connection = pin!(connection);
            // A connection that breaks is its client's affair.
            let _ = tokio::select! {
                ended = connection.as_mut() => ended,
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            drop(slot);
        });
    }
    drop(listener);
    open.close();
    open.wait().await;
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    struct Rig {
        address: std::net::SocketAddr,
        closing: CancellationToken,
        served: tokio::task::JoinHandle<()>,
    }

    async fn rig(bounds: Bounds) -> Rig {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| async { "here" })).route(
            "/body",
            post(|body: Result<String, axum::extract::rejection::StringRejection>| async move { body }),
        );
        let closing = CancellationToken::new();
        let served = tokio::spawn(serve(listener, router, bounds, closing.clone()));
        Rig { address, closing, served }
    }

    async fn answer(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    const SHORT: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn half_a_head_is_not_waited_for() {
        let rig = rig(Bounds { head: SHORT, ..Bounds::default() }).await;
        let began = Instant::now();
        let text = answer(rig.address, "GET / HTTP/1.1\r\nHost: a").await;
        assert!(text.is_empty() || text.contains("408"), "{text}");
        assert!(began.elapsed() < Duration::from_secs(20));
        let text = answer(rig.address, "").await;
        assert!(text.is_empty(), "a connection that says nothing ends, too: {text}");
    }

    #[tokio::test]
    async fn a_body_that_falls_silent_is_not_waited_for() {
        let rig = rig(Bounds { body_silence: SHORT, ..Bounds::default() }).await;
        let request = "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf";
        let text = answer(rig.address, request).await;
        assert!(text.starts_with("HTTP/1.1 4"), "{text}");
    }

    #[tokio::test]
    async fn a_full_listener_serves_again_when_there_is_room() {
        let rig = rig(Bounds { connections: 1, head: SHORT, ..Bounds::default() }).await;
        let _holds_the_only_slot = TcpStream::connect(rig.address).await.unwrap();
        let text = answer(rig.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(text.ends_with("here"), "{text}");
    }

    #[tokio::test]
    async fn closing_ends_idle_connections() {
        let rig = rig(Bounds::default()).await;
        let mut idle = TcpStream::connect(rig.address).await.unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        idle.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        rig.closing.cancel();
        rig.served.await.unwrap();
    }
}
