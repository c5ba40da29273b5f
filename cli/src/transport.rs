//! One request, one answer: straight to a URL, or through a port-forward. Nothing here knows the API.

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use url::Url;

use crate::api::Body;
use crate::forward::PortForward;

/// There was no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
#[error("{place} can't be reached: {cause}")]
pub struct Unreachable {
    place: String,
    cause: String,
}

impl Unreachable {
    /// With its cause's whole story, on one line.
    pub fn new(place: &str, error: &dyn std::error::Error) -> Self {
        let mut cause = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            // Many errors tell their source's story too.
            let more = source.to_string();
            if !cause.contains(&more) {
                cause = format!("{cause}: {more}");
            }
            next = source.source();
        }
        Self { place: place.to_owned(), cause }
    }
}

/// A way to a server. Clones share its connections.
#[derive(Clone)]
pub struct Transport {
    place: String,
    way: Way,
}

#[derive(Clone)]
enum Way {
    Direct { client: reqwest::Client, base: String },
    Forward(Box<Client<PortForward, Full<Bytes>>>),
}

/// Why a URL can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidServer {
    /// Not http or https.
    #[error("{0:?} is no server: write http://host:port or https://host")]
    Url(String),
    /// No HTTP client can be made.
    #[error("no HTTP client can be made: {0}")]
    Client(#[from] reqwest::Error),
}

impl Transport {
    /// To a URL.
    ///
    /// # Errors
    /// When it is none, or its scheme is not http or https.
    pub fn direct(server: &str) -> Result<Self, InvalidServer> {
        let url = Url::parse(server).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = url.filter(|url| url.username().is_empty() && url.password().is_none() && url.query().is_none());
        let url = url.ok_or_else(|| InvalidServer::Url(server.to_owned()))?;
        // A redirect could take the token elsewhere.
        let mut builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        if is_loopback(&url) {
            builder = builder.no_proxy();
        }
        let base = url.as_str().trim_end_matches('/').to_owned();
        Ok(Self { place: base.clone(), way: Way::Direct { client: builder.build()?, base } })
    }

    /// Through a port-forward.
    #[must_use]
    pub fn forward(place: String, forward: PortForward) -> Self {
        Self { place, way: Way::Forward(Box::new(Client::builder(TokioExecutor::new()).build(forward))) }
    }

    /// Where it leads, for people.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Sends a request; the answer's status is not judged.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Body>, Unreachable> {
        match &self.way {
            Way::Direct { client, base } => {
                let request = client.request(method, format!("{base}{path}")).headers(headers).body(body);
                let response = request.send().await.map_err(|error| self.lost(&error.without_url()))?;
                let mut answer = Response::builder().status(response.status());
                if let Some(headers) = answer.headers_mut() {
                    headers.extend(response.headers().clone());
                }
                let place = self.place.clone();
                let chunks = response.bytes_stream();
                let body =
                    chunks.map(move |chunk| chunk.map_err(|e| Unreachable::new(&place, &e.without_url()))).boxed();
                answer.body(body).map_err(|error| self.lost(&error))
            }
            Way::Forward(client) => {
                let mut request = Request::builder().method(method).uri(format!("http://localhost{path}"));
                if let Some(all) = request.headers_mut() {
                    all.extend(headers);
                }
                let request = request.body(Full::new(body)).map_err(|error| self.lost(&error))?;
                let response = client.request(request).await.map_err(|error| self.lost(&error))?;
                let place = self.place.clone();
                Ok(response.map(|body| {
                    let chunks = body.into_data_stream();
                    chunks.map(move |chunk| chunk.map_err(|error| Unreachable::new(&place, &error))).boxed()
                }))
            }
        }
    }

    fn lost(&self, error: &dyn std::error::Error) -> Unreachable {
        Unreachable::new(&self.place, error)
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_urls_without_secrets() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        assert_eq!(Transport::direct("http://127.0.0.1:7777/").unwrap().place(), "http://127.0.0.1:7777");
        assert_eq!(
            Transport::direct("https://agents.example.com/api/").unwrap().place(),
            "https://agents.example.com/api"
        );
        for bad in ["localhost:7777", "ftp://a", "http://user:pw@a", "", "http://a?token=x"] {
            assert!(Transport::direct(bad).is_err(), "{bad}");
        }
    }
}
