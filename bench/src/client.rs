//! One client of a server in AgentOS' shape: one connection, one request at a time, no more work than necessary.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::sse::Events;

/// Longest wait for an answer: a benchmark that hangs is a failed one.
const LIMIT: Duration = Duration::from_secs(60);

/// A server and one of its agents.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where it is.
    pub address: SocketAddr,
    /// Id of the agent.
    pub agent: String,
    /// Bearer key.
    pub key: Option<String>,
}

/// A connection.
pub struct Client {
    target: Target,
    sender: SendRequest<Full<Bytes>>,
}

/// An event of a stream, and how long after the request it came.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its name.
    pub name: String,
    /// Since the request.
    pub after: Duration,
}

/// A stream that has ended.
#[derive(Debug)]
pub struct Stream {
    /// Until the answer's head.
    pub accepted: Duration,
    /// Id of the run, from the head or from an event.
    pub run_id: Option<String>,
    /// What came.
    pub events: Vec<Event>,
    /// Until the end.
    pub ended: Duration,
}

impl Stream {
    /// When the first event of a name came; without a name, the first of all.
    pub fn first(&self, name: Option<&str>) -> Option<Duration> {
        self.events.iter().find(|event| name.is_none_or(|name| event.name == name)).map(|event| event.after)
    }
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When nothing listens there.
    pub async fn connect(target: &Target) -> Result<Self> {
        let stream = TcpStream::connect(target.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { target: target.clone(), sender })
    }

    /// Sends a request, answers when the head is there.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn send(&mut self, method: Method, path: &str, form: Option<Bytes>) -> Result<Response<Incoming>> {
        let mut request =
            Request::builder().method(method).uri(path).header(header::HOST, self.target.address.to_string());
        if let Some(key) = &self.target.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        if form.is_some() {
            request = request.header(header::CONTENT_TYPE, format!("multipart/form-data; boundary={BOUNDARY}"));
        }
        let request = request.body(Full::new(form.unwrap_or_default()))?;
        tokio::time::timeout(LIMIT, async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        })
        .await
        .with_context(|| format!("no answer from {path}"))?
        .with_context(|| format!("the connection broke at {path}"))
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn call(&mut self, method: Method, path: &str, form: Option<Bytes>) -> Result<(StatusCode, Bytes)> {
        let response = self.send(method, path, form).await?;
        let status = response.status();
        let body = tokio::time::timeout(LIMIT, response.into_body().collect()).await.context("the answer hangs")??;
        Ok((status, body.to_bytes()))
    }

    /// Runs the agent and waits for the end.
    ///
    /// # Errors
    /// When the run did not end well.
    pub async fn run(&mut self, session: &str, message: &str) -> Result<Duration> {
        let began = Instant::now();
        let form = form(&[("message", message), ("stream", "false"), ("session_id", session)]);
        let (status, body) = self.call(Method::POST, &self.runs(), Some(form)).await?;
        let took = began.elapsed();
        let text = String::from_utf8_lossy(&body);
        let completed = text.contains("\"COMPLETED\"");
        ensure!(status == StatusCode::OK && completed, "a run ended badly: {status} {}", head(&text));
        Ok(took)
    }

    /// Runs the agent and reads its events to the end: inline, or `queued` as a background run.
    ///
    /// # Errors
    /// When the run did not end well.
    pub async fn stream(&mut self, session: &str, message: &str, queued: bool) -> Result<Stream> {
        let queued = if queued { "true" } else { "false" };
        let form = form(&[("message", message), ("stream", "true"), ("session_id", session), ("background", queued)]);
        let path = self.runs();
        let stream = self.events(&path, form).await?;
        let last = stream.events.last().map(|event| event.name.as_str());
        ensure!(last == Some("RunCompleted"), "a run ended badly: its last event is {last:?}");
        Ok(stream)
    }

    /// Reads a run's events again, from the first on.
    ///
    /// # Errors
    /// When there are none.
    pub async fn replay(&mut self, session: &str, run_id: &str) -> Result<Stream> {
        let form = form(&[("session_id", session)]);
        let path = format!("{}/{run_id}/resume", self.runs());
        self.events(&path, form).await
    }

    async fn events(&mut self, path: &str, form: Bytes) -> Result<Stream> {
        let began = Instant::now();
        let response = self.send(Method::POST, path, Some(form)).await?;
        let accepted = began.elapsed();
        let status = response.status();
        let run_id = response.headers().get("x-run-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let mut body = response.into_body();
        let mut pieces = Vec::new();
        while let Some(frame) = tokio::time::timeout(LIMIT, body.frame()).await.context("a stream hangs")? {
            if let Ok(bytes) = frame.context("a stream broke")?.into_data() {
                pieces.push((began.elapsed(), bytes));
            }
        }
        // Read when the clock has stopped: it is the server that is measured.
        let ended = began.elapsed();
        let text = || pieces.iter().flat_map(|(_, bytes)| bytes).copied().collect::<Vec<_>>();
        ensure!(status == StatusCode::OK, "{status} {}", head(&String::from_utf8_lossy(&text())));
        let run_id = run_id.or_else(|| pieces.iter().find_map(|(_, bytes)| named_run(bytes)));
        let (mut events, mut parser) = (Vec::new(), Events::default());
        for (after, bytes) in pieces {
            events.extend(parser.push(&bytes).into_iter().map(|name| Event { name, after }));
        }
        Ok(Stream { accepted, run_id, events, ended })
    }

    /// Has a run accepted, without waiting for it. `None`: the server says that its queue is full.
    ///
    /// # Errors
    /// At any other answer.
    pub async fn submit(&mut self, session: &str, message: &str) -> Result<Option<String>> {
        let fields = [("message", message), ("stream", "false"), ("background", "true"), ("session_id", session)];
        let (status, body) = self.call(Method::POST, &self.runs(), Some(form(&fields))).await?;
        match status {
            StatusCode::ACCEPTED | StatusCode::OK => {
                let answer: serde_json::Value = serde_json::from_slice(&body)?;
                Ok(Some(answer["run_id"].as_str().context("an accepted run has no id")?.to_owned()))
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Ok(None),
            _ => bail!("a run was not accepted: {status} {}", head(&String::from_utf8_lossy(&body))),
        }
    }

    /// Status of a run, in AgentOS' words.
    ///
    /// # Errors
    /// When there is none.
    pub async fn status(&mut self, session: &str, run_id: &str) -> Result<String> {
        let path = format!("{}/{run_id}?session_id={session}", self.runs());
        let (status, body) = self.call(Method::GET, &path, None).await?;
        ensure!(status == StatusCode::OK, "{path}: {status}");
        let answer: serde_json::Value = serde_json::from_slice(&body)?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    fn runs(&self) -> String {
        format!("/agents/{}/runs", self.target.agent)
    }
}

/// The run that an event is of: servers without a header for it say it there.
fn named_run(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let rest = text.split_once("\"run_id\":")?.1.trim_start().strip_prefix('"')?;
    rest.split_once('"').map(|(id, _)| id.to_owned())
}

const BOUNDARY: &str = "cadre-bench-6c9f2b";

/// A form as AgentOS' own client sends it.
pub fn form(fields: &[(&str, &str)]) -> Bytes {
    let mut body = String::new();
    for (name, value) in fields {
        body.push_str(&format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"));
    }
    body.push_str(&format!("--{BOUNDARY}--\r\n"));
    body.into()
}

fn head(text: &str) -> String {
    text.chars().take(300).collect()
}
