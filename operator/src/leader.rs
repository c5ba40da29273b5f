//! Leader election: one Lease, held with resourceVersion preconditions and given back on stop.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Name of the Lease.
pub const NAME: &str = "cadre-operator";
/// Seconds that a holder may be silent.
const DURATION_SECONDS: i32 = 15;
const RENEW: Duration = Duration::from_secs(5);
/// A holder that could not renew for so long stops, before another may start.
const GIVE_UP: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);

/// A candidate.
#[derive(Clone)]
pub struct Candidate {
    leases: Api<Lease>,
    identity: String,
}

/// What a candidate saw of another holder. Only its own clock counts.
#[derive(Debug, Default)]
struct Watch {
    seen: Option<(Option<String>, Instant)>,
}

impl Watch {
    /// Whether a lease can be taken.
    fn is_free(&mut self, lease: &Lease, me: &str, now: Instant) -> bool {
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref().is_none_or(|holder| holder.is_empty() || holder == me) {
            return true;
        }
        let version = lease.metadata.resource_version.clone();
        match &self.seen {
            Some((seen, since)) if *seen == version => {
                let seconds = spec.lease_duration_seconds.unwrap_or(DURATION_SECONDS).max(1);
                now.duration_since(*since) > Duration::from_secs(seconds.unsigned_abs().into())
            }
            _ => {
                self.seen = Some((version, now));
                false
            }
        }
    }
}

impl Candidate {
    /// In a namespace, under a name that no other replica has.
    #[must_use]
    pub fn new(client: Client, namespace: &str, identity: String) -> Self {
        Self { leases: Api::namespaced(client, namespace), identity }
    }

    /// Waits until this replica leads.
    pub async fn acquire(&self) {
        let mut watch = Watch::default();
        loop {
            match self.try_acquire(&mut watch).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "could not look at the leader's lease"),
            }
            sleep(RETRY).await;
        }
    }

    async fn try_acquire(&self, watch: &mut Watch) -> Result<bool, kube::Error> {
        let Some(lease) = self.leases.get_opt(NAME).await? else {
            return won(self.leases.create(&PostParams::default(), &self.lease(None, 0)).await);
        };
        if !watch.is_free(&lease, &self.identity, Instant::now()) {
            return Ok(false);
        }
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0) + 1;
        let next = self.lease(lease.metadata.resource_version, transitions);
        won(self.leases.replace(NAME, &PostParams::default(), &next).await)
    }

    fn lease(&self, resource_version: Option<String>, transitions: i32) -> Lease {
        let now = Some(MicroTime(Timestamp::now()));
        Lease {
            metadata: ObjectMeta { name: Some(NAME.into()), resource_version, ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(DURATION_SECONDS),
                acquire_time: now.clone(),
                renew_time: now,
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Keeps the lease until told to stop, then gives it back; returns early when it is lost.
    pub async fn keep(&self, stop: &CancellationToken) {
        let mut renewed = Instant::now();
        while stop.run_until_cancelled(sleep(RENEW)).await.is_some() {
            match self.renew().await {
                Ok(true) => renewed = Instant::now(),
                Ok(false) => {
                    tracing::error!("another replica has the lease");
                    return;
                }
                Err(error) if renewed.elapsed() + RENEW > GIVE_UP => {
                    tracing::error!(%error, "could not renew the lease in time");
                    return;
                }
                Err(error) => tracing::warn!(%error, "could not renew the lease"),
            }
        }
    }

    async fn renew(&self) -> Result<bool, kube::Error> {
        self.replace(|spec| spec.renew_time = Some(MicroTime(Timestamp::now()))).await
    }

    /// Gives the lease back, so that another replica need not wait.
    pub async fn release(&self) {
        let given = self.replace(|spec| {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        });
        if let Err(error) = given.await {
            tracing::warn!(%error, "could not give the lease back");
        }
    }

    /// Replaces the lease if this replica still has it.
    async fn replace(&self, change: impl FnOnce(&mut LeaseSpec)) -> Result<bool, kube::Error> {
        let mut lease = self.leases.get(NAME).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(false);
        }
        change(spec);
        won(self.leases.replace(NAME, &PostParams::default(), &lease).await)
    }
}

/// A conflict means that another replica was faster.
fn won(result: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: &str) -> Lease {
        Lease {
            metadata: ObjectMeta { resource_version: Some(version.into()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec { holder_identity: Some(holder.into()), ..LeaseSpec::default() }),
        }
    }

    #[test]
    fn a_lease_is_free_when_given_back_or_silent() {
        let mut watch = Watch::default();
        let now = Instant::now();
        assert!(watch.is_free(&lease("", "1"), "me", now));
        assert!(watch.is_free(&lease("me", "1"), "me", now));
        assert!(!watch.is_free(&lease("other", "1"), "me", now));
        assert!(!watch.is_free(&lease("other", "2"), "me", now + Duration::from_secs(16)), "it was renewed");
        assert!(watch.is_free(&lease("other", "2"), "me", now + Duration::from_secs(33)));
    }
}
