//! The HTTP API of Cadre as product code uses it, through a port that kubectl forwards.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::forward::Forward;
use super::http::{Request, Response, send};
use super::{LIMIT, SYSTEM};
use crate::cluster::Cluster;
use crate::wait;

/// Media type of the API's forms.
pub(crate) const FORM: &str = "application/x-www-form-urlencoded";
/// Longest time until the API answers again after it was killed.
const RETURN: Duration = Duration::from_secs(300);

/// A client. Clones share the way in, and open another when it breaks.
#[derive(Debug, Clone)]
pub struct Api {
    cluster: Cluster,
    bearer: String,
    forward: Arc<Mutex<Option<Arc<Forward>>>>,
}

/// A run that was accepted.
#[derive(Debug, Clone)]
pub struct Started {
    /// Id of its agent.
    pub agent: String,
    /// Its id.
    pub run: String,
    /// Its session's id.
    pub session: String,
}

impl Api {
    /// With the installation's own key.
    ///
    /// # Errors
    /// When Cadre is not installed.
    pub fn new(cluster: &Cluster) -> Result<Self> {
        let path = "jsonpath={.data.OS_SECURITY_KEY}";
        let key = cluster
            .run(&["--namespace", SYSTEM, "get", "secret", "cadre-api-key", "-o", path])
            .context("Cadre is not installed: run `make up`")?;
        let key = String::from_utf8(STANDARD.decode(key.trim())?)?;
        Ok(Self { cluster: cluster.clone(), bearer: format!("Bearer {key}"), forward: Arc::default() })
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.bearer.trim_start_matches("Bearer ")
    }

    /// The port on loopback.
    ///
    /// # Errors
    /// When the API server doesn't come (back) in time.
    pub fn forward(&self) -> Result<Arc<Forward>> {
        let mut kept = self.forward.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(forward) = kept.as_ref() {
            return Ok(forward.clone());
        }
        let mut opened = None;
        let hint = "kubectl -n cadre-system get pods";
        wait::until("the API server to answer", RETURN, hint, || {
            opened = Forward::to_service(&self.cluster, SYSTEM, "cadre-api", 7777).ok().filter(answers).map(Arc::new);
            Ok(opened.is_some())
        })?;
        kept.clone_from(&opened);
        opened.context("no way in")
    }

    /// One try. The way in is given up when it fails.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn once(&self, method: &str, path: &str, headers: &[(&str, &str)], form: &[(&str, &str)]) -> Result<Response> {
        let forward = self.forward()?;
        let own = [("Authorization", self.bearer.as_str()), ("Content-Type", FORM)];
        let headers = [&own, headers].concat();
        let body = encode(form);
        let answer = send(forward.address(), &Request { method, path, headers: &headers, body: body.as_bytes() });
        if answer.is_err() {
            self.give_up(&forward);
        }
        answer
    }

    fn give_up(&self, broken: &Arc<Forward>) {
        let mut kept = self.forward.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_some_and(|forward| Arc::ptr_eq(forward, broken)) {
            *kept = None;
        }
    }

    /// Reads, as often as needed while the API server is away.
    ///
    /// # Errors
    /// When it stays away, or refuses.
    pub fn get(&self, path: &str) -> Result<Value> {
        let mut answer = None;
        wait::until(path, RETURN, "read the API server's log", || {
            answer = self.once("GET", path, &[], &[]).ok().filter(|answer| answer.status != 503);
            Ok(answer.is_some())
        })?;
        answer.context("no answer")?.json()
    }

    /// Posts a form.
    ///
    /// # Errors
    /// When the API server is away, or refuses.
    pub fn post(&self, path: &str, form: &[(&str, &str)]) -> Result<Value> {
        self.once("POST", path, &[], form)?.json()
    }

    /// Waits until the API server knows an agent, and takes runs for it or not.
    ///
    /// # Errors
    /// When that doesn't become so in time.
    pub fn knows(&self, agent: &str, is_ready: bool) -> Result<()> {
        let (path, what) = (format!("/agents/{agent}"), format!("the API server to see {agent} with ready={is_ready}"));
        wait::until(&what, RETURN, "read the API server's log", || {
            let answer = self.once("GET", &path, &[], &[]).and_then(Response::json);
            Ok(answer.is_ok_and(|agent| agent["ready"] == is_ready))
        })
    }

    /// Starts a run without waiting for its end.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn start(&self, agent: &str, message: &str, session: Option<&str>) -> Result<Started> {
        let mut form = vec![("message", message), ("background", "true"), ("stream", "false")];
        form.extend(session.map(|session| ("session_id", session)));
        let answer = self.post(&format!("/agents/{agent}/runs"), &form)?;
        let word = |name: &str| answer[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
        Ok(Started { agent: agent.to_owned(), run: word("run_id")?, session: word("session_id")? })
    }

    /// A run in full, as it is now.
    ///
    /// # Errors
    /// When it can't be had.
    pub fn detail(&self, started: &Started) -> Result<Value> {
        let Started { agent, run, session } = started;
        self.get(&format!("/agents/{agent}/runs/{run}?session_id={}", escape(session)))
    }

    /// A run in full, once it has ended.
    ///
    /// # Errors
    /// When it doesn't end in time.
    pub fn ended(&self, started: &Started) -> Result<Value> {
        let mut detail = Value::Null;
        let what = format!("run {} to end", started.run);
        wait::until(&what, LIMIT, "read the API server's log", || {
            detail = self.detail(started)?;
            let status = detail["status"].as_str().unwrap_or_default();
            Ok(["COMPLETED", "CANCELLED", "ERROR"].contains(&status))
        })?;
        Ok(detail)
    }
}

/// kubectl forwards to a pod whose server may still be starting.
fn answers(forward: &Forward) -> bool {
    let request = Request { method: "GET", path: "/health", headers: &[], body: &[] };
    send(forward.address(), &request).is_ok_and(|answer| answer.status == 200)
}

/// A form's body.
pub(crate) fn encode(form: &[(&str, &str)]) -> String {
    let pairs: Vec<_> = form.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
    pairs.join("&")
}

pub(crate) fn escape(text: &str) -> String {
    let escaped = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.as_bytes().iter().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_escaped() {
        assert_eq!(encode(&[("message", "a & b=ü"), ("x", "~1")]), "message=a%20%26%20b%3D%C3%BC&x=~1");
    }
}
