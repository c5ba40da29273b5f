//! Leader election: one Lease, held with resourceVersion preconditions and given back on stop.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Name of the Lease.
pub const NAME: &str = "cadre-operator";
/// Seconds that a holder may be silent.
const DURATION_SECONDS: i32 = 15;
/// Time that a holder has between giving up and the end of its lease: so long its work may take to stop.
pub const WIND_UP: Duration = Duration::from_secs(5);

/// When a holder does what. A lease counts from before the request that wrote it.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Age of the lease at which it is renewed. Also the longest wait for winning it, or for giving it back.
    renew: Duration,
    /// Age at which a holder that could not renew it stops, before another may start.
    give_up: Duration,
    /// Pause after a request without success.
    retry: Duration,
}

const PACE: Pace =
    Pace { renew: Duration::from_secs(5), give_up: Duration::from_secs(10), retry: Duration::from_secs(2) };

/// A candidate.
#[derive(Clone)]
pub struct Candidate {
    leases: Api<Lease>,
    identity: String,
    pace: Pace,
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
        Self { leases: Api::namespaced(client, namespace), identity, pace: PACE }
    }

    /// Waits until this replica leads; answers since when its lease counts.
    pub async fn acquire(&self) -> Instant {
        let mut watch = Watch::default();
        loop {
            let asked = Instant::now();
            // A lease that is won by a late answer would be half over: it is asked for anew.
            match timeout(self.pace.renew, self.try_acquire(&mut watch)).await {
                Ok(Ok(true)) => return asked,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "could not look at the leader's lease"),
                Err(_) => tracing::warn!("the Kubernetes API does not answer: no look at the leader's lease"),
            }
            sleep(self.pace.retry).await;
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

    /// Keeps the lease, which counts from `since`, until told to stop; returns early when it is lost, or not renewed in
    /// time, whether it was refused or not answered.
    pub async fn keep(&self, since: Instant, stop: &CancellationToken) {
        let Pace { renew, give_up, retry } = self.pace;
        let (mut renewed, mut next) = (since, since + renew);
        while stop.run_until_cancelled(sleep_until(next)).await.is_some() {
            let asked = Instant::now();
            let answer = timeout_at(renewed + give_up, self.renew());
            match stop.run_until_cancelled(answer).await {
                None => return,
                Some(Ok(Ok(true))) => (renewed, next) = (asked, asked + renew),
                Some(Ok(Ok(false))) => {
                    tracing::error!("another replica has the lease");
                    return;
                }
                Some(Ok(Err(error))) => {
                    tracing::warn!(%error, "could not renew the lease");
                    next = (Instant::now() + retry).min(renewed + give_up);
                }
                Some(Err(_)) => {
                    tracing::error!("could not renew the lease in time");
                    return;
                }
            }
        }
    }

    async fn renew(&self) -> Result<bool, kube::Error> {
        self.replace(|spec| spec.renew_time = Some(MicroTime(Timestamp::now()))).await
    }

    /// Gives the lease back, so that another replica need not wait. Tries so for a while: it ends by itself too.
    pub async fn release(&self) {
        let given = self.replace(|spec| {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        });
        match timeout(self.pace.renew, given).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "could not give the lease back"),
            Err(_) => tracing::warn!("the Kubernetes API does not answer: the lease was not given back"),
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
    use kube::client::Body;

    use super::*;

    /// Longest wait for what must come much sooner.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// A holder of a lease whose Kubernetes API takes requests and never answers.
    fn unheard(pace: Pace) -> Candidate {
        let silence = tower::service_fn(|_: http::Request<Body>| async {
            std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>().await
        });
        Candidate { pace, ..Candidate::new(Client::new(silence, "default"), "default", "me".into()) }
    }

    fn soon() -> Pace {
        Pace { renew: Duration::from_millis(10), give_up: Duration::from_millis(50), retry: Duration::from_millis(10) }
    }

    #[tokio::test]
    async fn a_renewal_that_is_not_answered_ends_leadership_in_time() {
        let (candidate, stop, since) = (unheard(soon()), CancellationToken::new(), Instant::now());
        assert!(timeout(PATIENCE, candidate.keep(since, &stop)).await.is_ok(), "it leads for ever");
        assert!(since.elapsed() >= soon().give_up);
    }

    #[tokio::test]
    async fn stop_is_heard_while_a_renewal_is_not_answered() {
        let candidate = unheard(Pace { give_up: PATIENCE * 10, ..soon() });
        let stop = CancellationToken::new();
        let stopped = async {
            tokio::task::yield_now().await;
            stop.cancel();
        };
        let both = async { tokio::join!(candidate.keep(Instant::now(), &stop), stopped) };
        assert!(timeout(PATIENCE, both).await.is_ok(), "it waits for the answer");
        assert!(timeout(PATIENCE, candidate.release()).await.is_ok(), "it waits for ever to give the lease back");
    }

    #[tokio::test]
    async fn a_candidate_that_is_not_answered_asks_again() {
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (count, (twice, mut hear)) = (asked.clone(), tokio::sync::mpsc::unbounded_channel());
        let silence = tower::service_fn(move |_: http::Request<Body>| {
            count.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            let _ = twice.send(());
            std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>()
        });
        let client = Client::new(silence, "default");
        let candidate = Candidate { pace: soon(), ..Candidate::new(client, "default", "me".into()) };
        let heard_twice = async { (hear.recv().await, hear.recv().await) };
        let either = async {
            tokio::select! {
                _ = candidate.acquire() => panic!("nobody has answered"),
                _ = heard_twice => {}
            }
        };
        assert!(timeout(PATIENCE, either).await.is_ok());
        assert!(asked.load(std::sync::atomic::Ordering::Acquire) >= 2);
    }

    #[test]
    fn a_holder_stops_before_another_may_start() {
        let lease = Duration::from_secs(DURATION_SECONDS.unsigned_abs().into());
        assert!(PACE.give_up + WIND_UP <= lease);
        assert!(PACE.renew < PACE.give_up, "a lease that was won late is renewed in time");
    }

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
