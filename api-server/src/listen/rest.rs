//! What a handler leaves of a request's body.
//!
//! A connection can't be used again before a request's body is read, and hyper closes one where it is not: a client that
//! sends its head and its body apart would now and then find its next request unanswered. So the rest of a small body
//! is read before the answer goes out, and where there is too much of it, the answer says that the connection ends.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderValue, header};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Most bytes that are read for nobody.
const MAX_REST_BYTES: usize = 64 << 10;
/// Longest time for them.
const REST_TIME: Duration = Duration::from_secs(1);

/// Lends the body to the handler, and reads the rest of it.
pub async fn read_rest<F: Future<Output = Response>>(request: Request, handle: impl FnOnce(Request) -> F) -> Response {
    let (back, mut returned) = oneshot::channel();
    let request = request.map(|body| Body::new(Lent { body, back: Some(back), ended: false }));
    let mut response = handle(request).await;
    if let Ok(rest) = returned.try_recv()
        && !matches!(timeout(REST_TIME, is_read(rest)).await, Ok(true))
    {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether there was little enough.
async fn is_read(mut rest: Body) -> bool {
    let mut bytes = 0;
    while let Some(frame) = rest.frame().await {
        let Ok(frame) = frame else { return false };
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > MAX_REST_BYTES {
            return false;
        }
    }
    true
}

/// A body that comes back unless it was read to its end.
struct Lent {
    body: Body,
    back: Option<oneshot::Sender<Body>>,
    ended: bool,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.ended |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(back) = self.back.take().filter(|_| !self.ended && !self.body.is_end_stream()) {
            // Nobody is there any more when the connection has gone.
            let _ = back.send(std::mem::take(&mut self.body));
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::{Next, from_fn};
    use axum::routing::post;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    use super::super::serve::{Bounds, serve};
    use super::*;

    async fn connect() -> TcpStream {
        let router = Router::new()
            .route("/ignored", post(|| async { "done" }))
            .route("/read", post(|body: String| async move { body }))
            .layer(from_fn(|request, next: Next| read_rest(request, |request| next.run(request))));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, router, Bounds::default(), CancellationToken::new()));
        TcpStream::connect(address).await.unwrap()
    }

    async fn answer(stream: &mut TcpStream, ending: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(ending) {
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            text.push(char::from(byte[0]));
        }
        text
    }

    #[tokio::test]
    async fn a_body_that_comes_after_its_head_does_not_end_the_connection() {
        let mut stream = connect().await;
        for _ in 0..20 {
            stream.write_all(b"POST /ignored HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n").await.unwrap();
            stream.flush().await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(b"body").await.unwrap();
            let text = answer(&mut stream, "done").await;
            assert!(!text.contains("connection: close"), "{text}");
        }
        stream.write_all(b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody").await.unwrap();
        answer(&mut stream, "body").await;
    }

    #[tokio::test]
    async fn who_sends_too_much_or_nothing_is_told_that_the_connection_ends() {
        let mut stream = connect().await;
        let head = format!("POST /ignored HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", MAX_REST_BYTES * 8);
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; MAX_REST_BYTES + 1]).await.unwrap();
        let text = answer(&mut stream, "done").await;
        assert!(text.contains("connection: close"), "{text}");
        let mut stream = connect().await;
        stream.write_all(b"POST /ignored HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n").await.unwrap();
        let text = answer(&mut stream, "done").await;
        assert!(text.contains("connection: close"), "{text}");
    }
}
