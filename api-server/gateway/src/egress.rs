//! The one client that leaves the cluster (security rule 16).
//!
//! A name is looked up once; the connection goes to an address of that answer which the policy allows. No redirect is
//! followed and no proxy variable is read. Anything that connects elsewhere without this client is a bug.

mod address;
pub(crate) mod headers;
mod resolver;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio::sync::OnceCell;
use url::{Host, Url};

pub use address::EgressPolicy;
pub use resolver::Lookup;
use resolver::{GuardedResolver, Refused};

pub(crate) use resolver::SystemLookup;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest body that is sent.
const MAX_REQUEST_BYTES: usize = 32 << 20;

/// The client can't be built.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client can't be built")]
pub struct BuildError(#[source] reqwest::Error);

/// A request that got no answer. Messages name the host at most.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EgressError {
    #[error("{0}")]
    Url(&'static str),
    #[error("{host} may not be reached: it has a {kind} address")]
    Refused { host: String, kind: &'static str },
    #[error("the request is larger than {MAX_REQUEST_BYTES} bytes")]
    TooLarge,
    #[error("{0} did not answer in time")]
    Timeout(String),
    #[error("{host} can't be reached: {reason}")]
    Connect { host: String, reason: String },
}

/// What is sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) url: Url,
    /// Built by [`headers::build`], plus what the gateway itself adds.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

/// The client. It is two, since CA certificates take long to read and `http` needs none.
pub(crate) struct Egress {
    plain: reqwest::Client,
    secure: OnceCell<reqwest::Client>,
    resolver: Arc<GuardedResolver>,
    policy: Arc<EgressPolicy>,
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Egress {
    pub(crate) fn new(policy: EgressPolicy, lookup: Arc<dyn Lookup>) -> Result<Self, BuildError> {
        // reqwest panics without a process-wide provider; one that is already there stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let policy = Arc::new(policy);
        let resolver = Arc::new(GuardedResolver { lookup, policy: Arc::clone(&policy) });
        let plain = builder(&resolver).tls_certs_only([]).build().map_err(BuildError)?;
        Ok(Self { plain, secure: OnceCell::new(), resolver, policy })
    }

    /// Makes what a request there needs, once. Without it the first request does, within its time limit.
    pub(crate) async fn prepare(&self, url: &Url) {
        self.client(url).await;
    }

    /// Whether no request has to make anything any more.
    pub(crate) fn is_prepared(&self) -> bool {
        self.secure.initialized()
    }

    async fn client(&self, url: &Url) -> &reqwest::Client {
        if !is_secure(url) {
            return &self.plain;
        }
        self.secure
            .get_or_init(async || {
                let resolver = Arc::clone(&self.resolver);
                let built = tokio::task::spawn_blocking(move || builder(&resolver).build()).await;
                match built {
                    Ok(Ok(client)) => client,
                    // TLS of the plain client trusts nobody.
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "no usable CA certificates: https destinations will be refused");
                        self.plain.clone()
                    }
                    Err(_) => self.plain.clone(),
                }
            })
            .await
    }

    /// Sends a request and waits for the answer's head.
    pub(crate) async fn send(&self, outgoing: Outgoing) -> Result<reqwest::Response, EgressError> {
        let Outgoing { method, url, headers, body } = outgoing;
        let host = self.check(&url)?;
        let mut request = self.client(&url).await.request(method, url).headers(headers);
        if let Some(body) = body {
            if body.len() > MAX_REQUEST_BYTES {
                return Err(EgressError::TooLarge);
            }
            request = request.body(body);
        }
        request.send().await.map_err(|error| describe(host, error))
    }

    /// Checks what the resolver never sees: the form of the URL and addresses written into it.
    fn check(&self, url: &Url) -> Result<String, EgressError> {
        check_form(url)?;
        let (host, literal) = match url.host() {
            Some(Host::Domain(name)) => (name.to_owned(), None),
            Some(Host::Ipv4(address)) => (address.to_string(), Some(address.into())),
            Some(Host::Ipv6(address)) => (format!("[{address}]"), Some(address.into())),
            None => return Err(EgressError::Url("the URL has no host")),
        };
        match literal.map(|address| self.policy.judge(address)) {
            Some(Err(kind)) => Err(EgressError::Refused { host, kind: kind.as_str() }),
            _ => Ok(host),
        }
    }
}

fn builder(resolver: &Arc<GuardedResolver>) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .dns_resolver(Arc::clone(resolver))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .user_agent(concat!("cadre/", env!("CARGO_PKG_VERSION")))
}

fn is_secure(url: &Url) -> bool {
    url.scheme() == "https"
}

/// Only `http` and `https`, without user name and password.
pub(crate) fn check_form(url: &Url) -> Result<(), EgressError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(EgressError::Url("the URL must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(EgressError::Url("the URL must not contain a user name or password"));
    }
    Ok(())
}

fn describe(host: String, error: reqwest::Error) -> EgressError {
    if let Some(refused) = find::<Refused>(&error) {
        return EgressError::Refused { host, kind: refused.0.as_str() };
    }
    if error.is_timeout() {
        return EgressError::Timeout(host);
    }
    EgressError::Connect { host, reason: root_cause(&error.without_url()) }
}

/// The innermost cause: the only link of the chain that tells a reader something.
pub(crate) fn root_cause(error: &dyn StdError) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut cause = Some(error);
    while let Some(link) = cause {
        if let Some(found) = link.downcast_ref::<E>() {
            return Some(found);
        }
        cause = link.source();
    }
    None
}
