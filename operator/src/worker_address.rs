//! The API server's address for pods, which have no DNS.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

/// Age at which an address is looked up again.
const FRESH: Duration = Duration::from_secs(60);

/// Looks the worker URL's host up and keeps the answer.
#[derive(Debug)]
pub struct WorkerAddress {
    url: Url,
    known: Mutex<Option<(SocketAddr, Instant)>>,
}

impl WorkerAddress {
    /// Of a URL with a host.
    #[must_use]
    pub fn new(url: Url) -> Self {
        Self { url, known: Mutex::default() }
    }

    /// `ws://address:port`. An old answer is better than none.
    ///
    /// # Errors
    /// When the name can't be resolved and never could.
    pub async fn endpoint(&self) -> std::io::Result<String> {
        let mut known = self.known.lock().await;
        if known.is_none_or(|(_, at)| at.elapsed() > FRESH) {
            match self.look_up().await {
                Ok(address) => *known = Some((address, Instant::now())),
                Err(error) if known.is_none() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, url = %self.url, "could not look up the API server; keeping its old address")
                }
            }
        }
        let none = || std::io::Error::other("the name has no address");
        known.map(|(address, _)| format!("ws://{address}")).ok_or_else(none)
    }

    async fn look_up(&self) -> std::io::Result<SocketAddr> {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.url.port().unwrap_or(80);
        let first = tokio::net::lookup_host((host, port)).await?.next();
        first.ok_or_else(|| std::io::Error::other("the name has no address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_need_no_name_server() {
        for (url, endpoint) in
            [("http://10.0.0.7:7780", "ws://10.0.0.7:7780"), ("ws://[fd00::7]:7780", "ws://[fd00::7]:7780")]
        {
            let address = WorkerAddress::new(Url::parse(url).unwrap());
            assert_eq!(address.endpoint().await.unwrap(), endpoint);
        }
    }
}
