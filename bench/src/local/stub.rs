//! A model server that both sides ask: Chat Completions, answered at once, the same every time.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

/// A message with this in it is answered in many pieces, each on its own.
pub const MANY: &str = "in many pieces";
/// How many.
pub const PIECES: usize = 5000;
/// Pause between them, so that nobody finds two at once.
const PAUSE: Duration = Duration::from_millis(1);

type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// Serves until the program ends; answers where.
///
/// # Errors
/// When there is no free port.
pub async fn start() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    });
    Ok(address)
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let asked = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
    let streams = asked["stream"] == true;
    let last = asked["messages"].as_array().and_then(|messages| messages.last());
    let many = streams && last.is_some_and(|message| message["content"].to_string().contains(MANY));
    let kind = if streams { "text/event-stream" } else { "application/json" };
    let parts: BoxStream<'static, String> = match (streams, many) {
        (false, _) => stream::iter([whole()]).boxed(),
        (true, false) => stream::iter([format!("{}{}", piece("Hello."), end())]).boxed(),
        (true, true) => pieces().boxed(),
    };
    let frames = parts.map(|text| Ok(Frame::data(Bytes::from(text)))).boxed();
    let mut response = Response::new(StreamBody::new(frames));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    Ok(response)
}

fn pieces() -> impl stream::Stream<Item = String> + Send {
    let paced = stream::unfold(0, |number| async move {
        if number == PIECES {
            return None;
        }
        tokio::time::sleep(PAUSE).await;
        Some((piece(&format!("piece {number} ")), number + 1))
    });
    paced.chain(stream::once(async { end() }))
}

fn usage() -> serde_json::Value {
    json!({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12})
}

fn whole() -> String {
    let message = json!({"role": "assistant", "content": "Hello."});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    json!({"id": "c", "object": "chat.completion", "created": 0, "model": "bench", "choices": [choice], "usage": usage()})
        .to_string()
}

fn chunk(choices: serde_json::Value, usage: serde_json::Value) -> String {
    let chunk = json!({
        "id": "c", "object": "chat.completion.chunk", "created": 0, "model": "bench", "choices": choices, "usage": usage
    });
    format!("data: {chunk}\n\n")
}

fn piece(text: &str) -> String {
    let delta = json!({"role": "assistant", "content": text});
    chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), serde_json::Value::Null)
}

fn end() -> String {
    let finish = chunk(json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]), serde_json::Value::Null);
    format!("{finish}{}data: [DONE]\n\n", chunk(json!([]), usage()))
}
