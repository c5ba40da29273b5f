//! The body of an event stream.
//!
//! It is pulled by the connection: a slow reader holds at most one chunk here, and delays nobody else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use cadre_store::rows::EventChunk;
use futures::StreamExt as _;
use futures::stream::{BoxStream, Stream};
use http::{HeaderValue, header};
use tokio_util::sync::CancellationToken;

use super::frames;
use super::resume::Plan;

/// How long a stream may be silent before a comment goes out.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// That comment.
pub const KEEP_ALIVE_FRAME: &str = ": keepalive\n\n";

/// An event stream as an answer.
pub fn response(chunks: BoxStream<'static, EventChunk>, plan: Plan, shutdown: CancellationToken) -> Response {
    with_headers(Body::from_stream(bytes(chunks, plan, shutdown, KEEP_ALIVE)))
}

/// An event stream of one frame.
#[must_use]
pub fn single(frame: String) -> Response {
    with_headers(Body::from(frame))
}

fn with_headers(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies of the nginx kind would hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// What goes out, until the chunks end or the server stops.
fn bytes(
    mut chunks: BoxStream<'static, EventChunk>,
    plan: Plan,
    shutdown: CancellationToken,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let Plan { first, after, mut caught_up, content_only } = plan;
    let mut sent = after.map_or(0, |last| last.saturating_add(1));
    async_stream::stream! {
        if let Some(frame) = first {
            yield Ok(Bytes::from(frame));
        }
        loop {
            if let Some((_, frame)) = caught_up.take_if(|(target, _)| sent >= *target) {
                yield Ok(Bytes::from(frame));
            }
            let next = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                next = tokio::time::timeout(keep_alive, chunks.next()) => next,
            };
            match next {
                Err(_silent) => yield Ok(Bytes::from_static(KEEP_ALIVE_FRAME.as_bytes())),
                Ok(None) => break,
                Ok(Some(chunk)) => {
                    sent = sent.max(chunk.next_index);
                    let part = part(chunk, after, content_only);
                    if !part.is_empty() {
                        yield Ok(part);
                    }
                }
            }
        }
    }
}

/// The part of a chunk that goes out; the stored bytes themselves wherever that is possible.
fn part(chunk: EventChunk, after: Option<u64>, content_only: bool) -> Bytes {
    let EventChunk { first_index, next_index: _, frames } = chunk;
    let kept = match after {
        Some(after) if first_index <= after => frames::beyond(&frames, after),
        _ => &frames,
    };
    if content_only {
        return Bytes::from(frames::only(kept, "RunContent"));
    }
    let start = frames.len() - kept.len();
    Bytes::from_owner(Frames(frames)).slice(start..)
}

/// Lets the record's shared text be the body without a copy.
struct Frames(Arc<str>);

impl AsRef<[u8]> for Frames {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(indices: std::ops::Range<u64>) -> EventChunk {
        let frames: String = indices.clone().map(frame).collect();
        EventChunk { first_index: indices.start, next_index: indices.end, frames: frames.into() }
    }

    fn frame(index: u64) -> String {
        let event = if index.is_multiple_of(2) { "RunContent" } else { "ToolCallStarted" };
        format!("id: {index}\nevent: {event}\ndata: {{}}\n\n")
    }

    async fn collect(chunks: Vec<EventChunk>, plan: Plan) -> String {
        let parts: Vec<_> =
            bytes(futures::stream::iter(chunks).boxed(), plan, CancellationToken::new(), KEEP_ALIVE).collect().await;
        parts.into_iter().map(|part| String::from_utf8(part.unwrap().to_vec()).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_client_gets_each_event_once_whatever_it_has() {
        for after in 0..9_u64 {
            let plan = Plan { after: Some(after), ..Plan::default() };
            // The record may answer with the chunk that the last seen event is in.
            let chunks = [chunk(0..3), chunk(3..4), chunk(4..9)].into_iter().filter(|c| c.next_index > after + 1);
            let expected: String = (after + 1..9).map(frame).collect();
            assert_eq!(collect(chunks.collect(), plan).await, expected, "after {after}");
        }
    }

    #[tokio::test]
    async fn the_client_learns_when_it_has_caught_up() {
        let plan = Plan { first: Some("A".into()), caught_up: Some((4, "B".into())), ..Plan::default() };
        let text = collect(vec![chunk(0..3), chunk(3..4), chunk(4..5)], plan).await;
        let expected = format!("A{}B{}", (0..4).map(frame).collect::<String>(), frame(4));
        assert_eq!(text, expected);
        let nothing_missed = Plan { after: Some(3), caught_up: Some((4, "B".into())), ..Plan::default() };
        assert_eq!(collect(vec![chunk(4..5)], nothing_missed).await, format!("B{}", frame(4)));
    }

    #[tokio::test]
    async fn only_pieces_of_the_answer_where_events_are_not_wanted() {
        let plan = Plan { content_only: true, ..Plan::default() };
        assert_eq!(collect(vec![chunk(0..5)], plan).await, [0, 2, 4].map(frame).concat());
    }

    #[tokio::test]
    async fn silence_is_filled_and_ends_with_the_server() {
        let shutdown = CancellationToken::new();
        let silent = futures::stream::pending().boxed();
        let mut stream = Box::pin(bytes(silent, Plan::default(), shutdown.clone(), Duration::from_millis(1)));
        for _ in 0..2 {
            assert_eq!(stream.next().await.unwrap().unwrap(), KEEP_ALIVE_FRAME);
        }
        shutdown.cancel();
        assert!(stream.next().await.is_none());
    }
}
