//! The `http` tool: requests on an agent's behalf, to hosts that the agent lists.
//!
//! It carries no credential of ours. What the model asks for is parsed, checked and written anew; what comes back is
//! cut to a size that fits an event.

use std::time::Duration;

use bytes::Bytes;
use cadre_protocol::worker::RemoteToolResult;
use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::{Map, Value};
use url::Url;

use crate::egress::{Outgoing, headers};
use crate::gateway::Gateway;
use crate::hosts;

/// Most bytes of an answer's body that the model sees.
const MAX_BODY: usize = 64 << 10;
/// Most bytes of a request's body.
const MAX_SENT: usize = 1 << 20;

impl Gateway {
    /// Makes a request for an agent: `url`, `method` (GET by default), `headers` (object of strings), `body` (text, or
    /// JSON that is sent as such). `hosts` are exact names or `*.suffix`; without any nothing is reached. `timeout`
    /// covers everything up to the last byte.
    ///
    /// Failures are results: the model reads them.
    pub async fn http_tool(
        &self,
        hosts: &[String],
        arguments: Map<String, Value>,
        timeout: Duration,
    ) -> RemoteToolResult {
        let outgoing = match parse(hosts, &arguments) {
            Ok(outgoing) => outgoing,
            Err(reason) => return RemoteToolResult { content: reason, error: true },
        };
        self.egress.prepare(&outgoing.url).await;
        match tokio::time::timeout(timeout, self.fetch(outgoing)).await {
            Ok(Ok(result)) => result,
            Ok(Err(reason)) => RemoteToolResult { content: reason, error: true },
            Err(_) => {
                let content = format!("no complete answer within {} s", timeout.as_secs_f64());
                RemoteToolResult { content, error: true }
            }
        }
    }

    async fn fetch(&self, outgoing: Outgoing) -> Result<RemoteToolResult, String> {
        let mut response = self.egress.send(outgoing).await.map_err(|error| error.to_string())?;
        let mut body = Vec::new();
        let mut whole = true;
        while whole {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    let room = MAX_BODY - body.len();
                    whole = chunk.len() <= room;
                    body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                }
                Ok(None) => break,
                Err(_) => return Err("the connection broke before the answer was complete".to_owned()),
            }
        }
        let status = response.status();
        let content = report(status, response.headers(), &body, whole);
        Ok(RemoteToolResult { content, error: !status.is_success() })
    }
}

fn parse(hosts: &[String], arguments: &Map<String, Value>) -> Result<Outgoing, String> {
    let text = |name: &str| match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("{name} must be text")),
    };
    let url = text("url")?.ok_or("url is missing")?;
    if url.contains(|c: char| c.is_control()) {
        return Err("url is malformed".to_owned());
    }
    let url = Url::parse(url).map_err(|error| format!("url is malformed: {error}"))?;
    if !hosts::allowed(hosts, &url) {
        let host = url.host_str().unwrap_or_default();
        return Err(format!("{host:?} is not among the hosts that this agent may reach: {}", hosts.join(", ")));
    }
    let method = method(text("method")?.unwrap_or("GET"))?;
    let mut headers = parse_headers(arguments.get("headers"))?;
    let body = body(arguments.get("body"), &mut headers)?;
    Ok(Outgoing { method, url, headers, body })
}

fn method(word: &str) -> Result<Method, String> {
    match word.to_ascii_uppercase().as_str() {
        "GET" => Ok(Method::GET),
        "HEAD" => Ok(Method::HEAD),
        "POST" => Ok(Method::POST),
        "PUT" => Ok(Method::PUT),
        "PATCH" => Ok(Method::PATCH),
        "DELETE" => Ok(Method::DELETE),
        _ => Err("method must be GET, HEAD, POST, PUT, PATCH or DELETE".to_owned()),
    }
}

fn parse_headers(value: Option<&Value>) -> Result<HeaderMap, String> {
    let map = match value {
        None | Some(Value::Null) => return Ok(HeaderMap::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err("headers must be an object".to_owned()),
    };
    let pairs = map.iter().map(|(name, value)| {
        let value = value.as_str().ok_or_else(|| "the values of headers must be text".to_owned())?;
        Ok((name.as_str(), value))
    });
    let pairs = pairs.collect::<Result<Vec<_>, String>>()?;
    headers::build(pairs, true).map_err(|error| error.to_string())
}

fn body(value: Option<&Value>, headers: &mut HeaderMap) -> Result<Option<Bytes>, String> {
    let body = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(json) => {
            headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            json.to_string()
        }
    };
    if body.len() > MAX_SENT {
        return Err(format!("body is larger than {MAX_SENT} bytes"));
    }
    Ok(Some(body.into()))
}

/// Status, the headers that help a model, and the body.
fn report(status: http::StatusCode, headers: &HeaderMap, body: &[u8], whole: bool) -> String {
    let mut out = format!("HTTP {status}\n");
    for name in [header::CONTENT_TYPE, header::LOCATION, header::RETRY_AFTER] {
        if let Some(value) = headers.get(&name).and_then(|value| value.to_str().ok()) {
            let value: String = value.chars().take(500).collect();
            out.push_str(&format!("{name}: {value}\n"));
        }
    }
    out.push('\n');
    match readable(body, whole) {
        Some(text) => out.push_str(text),
        None => out.push_str(&format!("({} bytes that are not text)", body.len())),
    }
    if !whole {
        out.push_str(&format!("\n(cut after {MAX_BODY} bytes)"));
    }
    out
}

/// The body as text; where it was cut, a broken last character is left out.
fn readable(body: &[u8], whole: bool) -> Option<&str> {
    match std::str::from_utf8(body) {
        Ok(text) => Some(text),
        Err(error) if !whole && error.error_len().is_none() => std::str::from_utf8(&body[..error.valid_up_to()]).ok(),
        Err(_) => None,
    }
    .filter(|text| !text.contains('\0'))
}
