//! The HTTP API at its replicas' own addresses: each request goes to the next one, as behind a load balancer that knows
//! little about who has just died.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::release::{REPLICAS, Release};
use crate::story::api::{FORM, Started, encode, escape};
use crate::story::http::{Request, Response, send};
use crate::story::kubernetes::Kubernetes;
use crate::story::{Story, is_ready};
use crate::wait;

const PORT: u16 = 7777;
/// Age at which the list of replicas is read again.
const FRESH: Duration = Duration::from_millis(500);
/// Longest time until somebody answers again.
const RETURN: Duration = Duration::from_secs(300);
const HINT: &str = "read the API servers' logs";

/// A client. Clones share what is known of the replicas.
#[derive(Debug, Clone)]
pub struct Door(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kubernetes: Kubernetes,
    path: String,
    bearer: String,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    replicas: Vec<SocketAddr>,
    read: Option<Instant>,
    next: usize,
}

impl Door {
    /// To the API servers of a release.
    ///
    /// # Errors
    /// When it has no key.
    pub fn new(story: &Story, release: &Release<'_>) -> Result<Self> {
        let selector = "labelSelector=app.kubernetes.io/component=api-server";
        Ok(Self(Arc::new(Inner {
            kubernetes: story.kubernetes.clone(),
            path: format!("{}?{selector}", Kubernetes::path(release.system(), "pods")),
            bearer: format!("Bearer {}", release.key()?),
            known: Mutex::default(),
        })))
    }

    /// Addresses of the replicas that are ready, as far as Kubernetes knows.
    ///
    /// # Errors
    /// When Kubernetes doesn't answer.
    pub fn replicas(&self) -> Result<Vec<SocketAddr>> {
        let list = self.0.kubernetes.get(&self.0.path)?;
        let pods = list["items"].as_array().into_iter().flatten();
        let pods = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null() && is_ready(pod));
        let addresses = pods.filter_map(|pod| pod["status"]["podIP"].as_str()?.parse::<IpAddr>().ok());
        Ok(addresses.map(|address| SocketAddr::new(address, PORT)).collect())
    }

    /// All replicas, once they are all there.
    ///
    /// # Errors
    /// When they aren't in time.
    pub fn all(&self) -> Result<Vec<SocketAddr>> {
        let mut all = Vec::new();
        wait::until("all API servers", RETURN, HINT, || {
            all = self.replicas()?;
            Ok(all.len() == REPLICAS)
        })?;
        Ok(all)
    }

    /// The replica whose turn it is.
    ///
    /// # Errors
    /// When none is ready.
    pub fn next(&self) -> Result<SocketAddr> {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.read.is_none_or(|read| read.elapsed() > FRESH) {
            known.replicas = self.replicas()?;
            known.read = Some(Instant::now());
        }
        known.next += 1;
        let at = known.next % known.replicas.len().max(1);
        known.replicas.get(at).copied().context("no API server is ready")
    }

    /// One try at a replica.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn at(&self, replica: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<Response> {
        self.send(replica, method, path, headers, &[])
    }

    /// One try at the next replica.
    ///
    /// # Errors
    /// When there is none, or the connection breaks.
    pub fn once(&self, method: &str, path: &str, headers: &[(&str, &str)], form: &[(&str, &str)]) -> Result<Response> {
        self.send(self.next()?, method, path, headers, form)
    }

    fn send(
        &self,
        replica: SocketAddr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        form: &[(&str, &str)],
    ) -> Result<Response> {
        let own = [("Authorization", self.0.bearer.as_str()), ("Content-Type", FORM)];
        let headers = [&own, headers].concat();
        send(replica, &Request { method, path, headers: &headers, body: encode(form).as_bytes() })
    }

    /// Asks until somebody answers anything but 503.
    fn answer(&self, method: &str, path: &str, headers: &[(&str, &str)], form: &[(&str, &str)]) -> Result<Value> {
        let mut answer = None;
        wait::until(path, RETURN, HINT, || {
            // An answer that breaks off is none.
            let whole = self.once(method, path, headers, form).and_then(|answer| Ok((answer.status, answer.text()?)));
            answer = whole.ok().filter(|(status, _)| *status != 503);
            Ok(answer.is_some())
        })?;
        let (status, text) = answer.context("no answer")?;
        ensure!((200..300).contains(&status), "{method} {path} answers {status}: {text}");
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// Starts a run in a session. It is asked for again, under the same key, until it is known to be accepted.
    ///
    /// # Errors
    /// When it is refused, or nobody answers.
    pub fn start(&self, agent: &str, message: &str, session: &str, key: &str) -> Result<Started> {
        let form = [("message", message), ("background", "true"), ("stream", "false"), ("session_id", session)];
        let path = format!("/agents/{agent}/runs");
        let answer = self.answer("POST", &path, &[("Idempotency-Key", key)], &form)?;
        let run = answer["run_id"].as_str().with_context(|| format!("no run in {answer}"))?;
        Ok(Started { agent: agent.to_owned(), run: run.to_owned(), session: session.to_owned() })
    }

    /// A run in full, as it is now.
    ///
    /// # Errors
    /// When it can't be had.
    pub fn detail(&self, started: &Started) -> Result<Value> {
        let Started { agent, run, session } = started;
        self.answer("GET", &format!("/agents/{agent}/runs/{run}?session_id={}", escape(session)), &[], &[])
    }
}
