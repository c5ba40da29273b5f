//! Requests to the API server's worker port, as the operator.

use std::path::PathBuf;
use std::time::Duration;

use cadre_protocol::feed::{CANCEL_SUFFIX, FEED_PATH, RUNS_PATH, RunReport, SubmitRun};
use cadre_protocol::problem::Problem;
use http::StatusCode;
use reqwest::{RequestBuilder, Response};
use url::Url;

/// Time for an answer to anything but the feed.
const ANSWER: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);

/// Why a request had no success.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The token file can't be read.
    #[error("could not read the token")]
    Token(#[source] std::io::Error),
    /// No connection, or it broke.
    #[error("the connection failed")]
    Connection(#[source] reqwest::Error),
    /// The API server said no.
    #[error("the API server answered {status}: {detail}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The API server's words.
        detail: String,
    },
}

impl FeedError {
    /// Whether a status says that the request itself is at fault, so that trying again is in vain. Not so: the operator's
    /// own credential (401, 403), an agent that is not seen there yet (404), and what passes (408, 425, 429).
    #[must_use]
    pub fn is_rejected(status: u16) -> bool {
        matches!(status, 400..=499) && !matches!(status, 401 | 403 | 404 | 408 | 425 | 429)
    }
}

/// A client of the API server.
#[derive(Debug, Clone)]
pub struct ApiClient {
    http: reqwest::Client,
    base: Url,
    token_file: PathBuf,
}

impl ApiClient {
    /// For a worker port.
    ///
    /// # Errors
    /// When TLS can't be set up.
    pub fn new(mut base: Url, token_file: PathBuf) -> Result<Self, FeedError> {
        if base.scheme() == "ws" {
            // From ws to http is always possible.
            let _ = base.set_scheme("http");
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(FeedError::Connection)?;
        Ok(Self { http, base, token_file })
    }

    /// Submits a Run object. The UID makes it the same run each time.
    ///
    /// # Errors
    /// When it was refused or there was no answer.
    pub async fn submit(&self, run: &SubmitRun) -> Result<RunReport, FeedError> {
        let request = self.http.post(self.url(RUNS_PATH)).timeout(ANSWER).json(run);
        self.send(request).await?.json().await.map_err(FeedError::Connection)
    }

    /// The run of a Run object, or none when the API server knows no such run.
    ///
    /// # Errors
    /// When it was refused or there was no answer.
    pub async fn look(&self, namespace: &str, uid: &str) -> Result<Option<RunReport>, FeedError> {
        let path = format!("{RUNS_PATH}/{namespace}/{uid}");
        match self.send(self.http.get(self.url(&path)).timeout(ANSWER)).await {
            Ok(response) => response.json().await.map(Some).map_err(FeedError::Connection),
            Err(FeedError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Cancels the run of a Run object; its state, or none when the API server knows no such run.
    ///
    /// # Errors
    /// When it was refused or there was no answer.
    pub async fn cancel(&self, namespace: &str, uid: &str) -> Result<Option<RunReport>, FeedError> {
        let path = format!("{RUNS_PATH}/{namespace}/{uid}/{CANCEL_SUFFIX}");
        match self.send(self.http.post(self.url(&path)).timeout(ANSWER)).await {
            Ok(response) => response.json().await.map(Some).map_err(FeedError::Connection),
            Err(FeedError::Refused { status: 404 | 409, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the feed.
    ///
    /// # Errors
    /// When it was refused or there was no answer.
    pub async fn feed(&self) -> Result<Response, FeedError> {
        self.send(self.http.get(self.url(FEED_PATH))).await
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(path);
        url
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, FeedError> {
        let token = tokio::fs::read_to_string(&self.token_file).await.map_err(FeedError::Token)?;
        let response = request.bearer_auth(token.trim()).send().await.map_err(FeedError::Connection)?;
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(refusal(status, response).await) }
    }
}

async fn refusal(status: StatusCode, response: Response) -> FeedError {
    let body = response.text().await.unwrap_or_default();
    let detail = match serde_json::from_str::<Problem>(&body) {
        Ok(problem) => problem.detail,
        Err(_) => body.chars().take(500).collect(),
    };
    FeedError::Refused { status: status.as_u16(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_of_the_run_are_rejections() {
        for (status, rejection) in [
            (400, true),
            (409, true),
            (413, true),
            (422, true),
            (401, false),
            (403, false),
            (404, false),
            (408, false),
            (425, false),
            (429, false),
            (500, false),
            (503, false),
        ] {
            assert_eq!(FeedError::is_rejected(status), rejection, "{status}");
        }
    }
}
