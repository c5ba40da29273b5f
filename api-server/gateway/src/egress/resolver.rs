//! Name look-up under the policy.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{EgressPolicy, Kind};

/// Looks names up.
#[async_trait]
pub trait Lookup: Send + Sync {
    /// The addresses of a name.
    ///
    /// # Errors
    /// If there are none or nobody can be asked.
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver.
#[derive(Debug)]
pub(crate) struct SystemLookup;

#[async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// Every address of a name is closed; the kind of the first.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the address is {}", .0.as_str())]
pub(crate) struct Refused(pub(crate) Kind);

/// Gives the HTTP client only addresses that the policy allows. The client connects to what it is given and asks
/// again only for the next connection, which is judged anew: a name can't change its mind in between.
pub(crate) struct GuardedResolver {
    pub(crate) lookup: Arc<dyn Lookup>,
    pub(crate) policy: Arc<EgressPolicy>,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (lookup, policy) = (Arc::clone(&self.lookup), Arc::clone(&self.policy));
        Box::pin(async move {
            let found = lookup.lookup(name.as_str()).await?;
            let mut refused = None;
            let mut open = Vec::with_capacity(found.len());
            for address in found {
                match policy.judge(address) {
                    Ok(()) => open.push(SocketAddr::new(address, 0)),
                    Err(kind) => refused = refused.or(Some(kind)),
                }
            }
            match refused {
                Some(kind) if open.is_empty() => Err(Refused(kind).into()),
                _ => Ok(Box::new(open.into_iter()) as Addrs),
            }
        })
    }
}
