//! Whether the pod's network refuses what it must (security rule 13): a look at an address that has to be out of reach.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::config::Enforcement;
use crate::engine::ports::Isolation;
use crate::link::hub::Hub;

const CONNECT_TIME: Duration = Duration::from_secs(1);
/// A new pod's policy may come after the pod itself: an open network is looked at again after these pauses, in
/// milliseconds, 5 s in all.
const PAUSES_MS: [u64; 16] = [50, 50, 50, 50, 100, 100, 100, 200, 300, 500, 500, 500, 500, 500, 500, 1000];
/// Pause between further looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// How long an open network is believed to stay open.
const OPEN_FOR: Duration = Duration::from_secs(30);

/// The look, done again now and then: soon for an open network, and soon after the first look at a closed one.
#[derive(Clone)]
pub struct NetworkProbe(Arc<Inner>);

struct Inner {
    target: Option<SocketAddr>,
    enforcement: Enforcement,
    hub: Hub,
    patience: Patience,
    seen: Mutex<Option<Seen>>,
}

/// How long a verdict is waited for, and believed.
#[derive(Clone, Copy)]
struct Patience {
    /// How long tools wait for an open network to close: on a node where many pods begin at once, policies take their time, and
    /// a tool that is refused for it has failed for nothing.
    closing: Duration,
    /// After the first look: one that nobody answered may only have been lost on its way.
    first: Duration,
    /// After a further one: a policy can be taken away under a running pod.
    later: Duration,
}

const PATIENCE: Patience =
    Patience { closing: Duration::from_secs(90), first: Duration::from_secs(30), later: Duration::from_secs(600) };

#[derive(Clone, Copy)]
enum Seen {
    Isolated { until: Instant },
    Open(Instant),
}

impl NetworkProbe {
    /// A probe of this address; without one, every network will do.
    #[must_use]
    pub fn new(target: Option<SocketAddr>, enforcement: Enforcement, hub: Hub) -> Self {
        if target.is_none() {
            info!("no address that must be out of reach is configured: tools run without a look at the network");
        }
        Self::with(target, enforcement, hub, PATIENCE)
    }

    fn with(target: Option<SocketAddr>, enforcement: Enforcement, hub: Hub, patience: Patience) -> Self {
        Self(Arc::new(Inner { target, enforcement, hub, patience, seen: Mutex::default() }))
    }

    async fn is_isolated(&self, target: SocketAddr) -> bool {
        let mut seen = self.0.seen.lock().await;
        match *seen {
            Some(Seen::Isolated { until }) => {
                if until <= Instant::now() {
                    *seen = Some(Seen::Isolated { until: Instant::now() + self.0.patience.later });
                    // No call waits for it.
                    tokio::spawn(self.clone().confirm(target));
                }
                return true;
            }
            Some(Seen::Open(at)) if at.elapsed() < OPEN_FOR => return false,
            Some(Seen::Open(_)) | None => {}
        }
        let at_first = look(target).await;
        self.report(target, at_first);
        let isolated = at_first || self.closes(target).await;
        *seen = Some(match isolated {
            true => Seen::Isolated { until: Instant::now() + self.0.patience.first },
            false => Seen::Open(Instant::now()),
        });
        if isolated != at_first {
            self.report(target, isolated);
        }
        isolated
    }

    /// Waits for an open network to close, where no tool may run before.
    async fn closes(&self, target: SocketAddr) -> bool {
        let until = Instant::now() + self.0.patience.closing;
        while self.0.enforcement == Enforcement::Required && Instant::now() < until {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            if is_closed(target).await {
                return true;
            }
        }
        false
    }

    /// Looks again at a network that was closed.
    async fn confirm(self, target: SocketAddr) {
        if !look(target).await {
            *self.0.seen.lock().await = Some(Seen::Open(Instant::now()));
            self.report(target, false);
        }
    }

    fn report(&self, target: SocketAddr, isolated: bool) {
        let outcome = if isolated { "refused or unanswered" } else { "accepted" };
        let detail = format!("a connection to {target} was {outcome}");
        if isolated {
            info!(%target, "the pod's network is isolated");
        } else {
            warn!(%target, "the pod's network is not isolated");
        }
        self.0.hub.send(|state| state.report_isolation(isolated, detail));
    }
}

/// Looks until the network is closed, or has had time enough to be.
async fn look(target: SocketAddr) -> bool {
    for pause in PAUSES_MS {
        if is_closed(target).await {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    is_closed(target).await
}

async fn is_closed(target: SocketAddr) -> bool {
    !matches!(timeout(CONNECT_TIME, TcpStream::connect(target)).await, Ok(Ok(_)))
}

#[async_trait]
impl Isolation for NetworkProbe {
    fn start(&self) {
        if let Some(target) = self.0.target {
            let probe = self.clone();
            tokio::spawn(async move { probe.is_isolated(target).await });
        }
    }

    async fn allows_tools(&self) -> bool {
        match self.0.target {
            None => true,
            Some(target) => self.is_isolated(target).await || self.0.enforcement == Enforcement::BestEffort,
        }
    }
}

#[cfg(test)]
mod tests {
    use cadre_protocol::worker::WorkerFrame;
    use tokio::net::TcpListener;

    use super::*;

    async fn verdict(enforcement: Enforcement, open: bool) -> (bool, Vec<WorkerFrame>) {
        let (hub, _news) = Hub::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        let _listener = open.then_some(listener);
        let patience = Patience { closing: Duration::from_millis(10), ..PATIENCE };
        let probe = NetworkProbe::with(Some(target), enforcement, hub.clone(), patience);
        (probe.allows_tools().await, hub.with(|state| state.ready()))
    }

    #[tokio::test]
    async fn an_open_network_is_reported_and_forbids_tools_where_that_is_required() {
        let (allowed, frames) = verdict(Enforcement::Required, true).await;
        assert!(!allowed);
        assert!(matches!(frames.as_slice(), [WorkerFrame::Isolation { isolated: false, .. }]), "{frames:?}");
        let (allowed, frames) = verdict(Enforcement::BestEffort, true).await;
        assert!(allowed);
        assert!(matches!(frames.as_slice(), [WorkerFrame::Isolation { isolated: false, .. }]), "{frames:?}");
    }

    #[tokio::test]
    async fn a_network_that_closes_late_is_isolation() {
        let (hub, _news) = Hub::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let probe = NetworkProbe::new(Some(listener.local_addr().unwrap()), Enforcement::Required, hub.clone());
        let closes = async {
            listener.accept().await.unwrap();
            drop(listener);
        };
        let (allowed, ()) = tokio::join!(probe.allows_tools(), closes);
        assert!(allowed, "it was open once");
        let frames = hub.with(|state| state.ready());
        assert!(matches!(frames.as_slice(), [WorkerFrame::Isolation { isolated: true, .. }]), "{frames:?}");
    }

    #[tokio::test]
    async fn tools_wait_for_a_network_that_takes_its_time_to_close() {
        let (hub, _news) = Hub::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let probe = NetworkProbe::new(Some(listener.local_addr().unwrap()), Enforcement::Required, hub.clone());
        let closes = async {
            // Open for longer than the first look lasts.
            for _ in 0..PAUSES_MS.len() + 2 {
                listener.accept().await.unwrap();
            }
            drop(listener);
        };
        let (allowed, ()) = tokio::join!(probe.allows_tools(), closes);
        assert!(allowed);
        let frames = hub.with(|state| state.ready());
        let [WorkerFrame::Isolation { isolated: false, .. }, WorkerFrame::Isolation { isolated: true, .. }] =
            &frames[..]
        else {
            panic!("{frames:?}")
        };
    }

    #[tokio::test]
    async fn a_refusal_is_isolation() {
        let (allowed, frames) = verdict(Enforcement::Required, false).await;
        assert!(allowed);
        assert!(matches!(frames.as_slice(), [WorkerFrame::Isolation { isolated: true, .. }]), "{frames:?}");
    }

    #[tokio::test]
    async fn a_closed_network_is_looked_at_again() {
        let (hub, _news) = Hub::new();
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let patience = Patience { closing: Duration::ZERO, first: Duration::ZERO, later: Duration::from_secs(3600) };
        let probe = NetworkProbe::with(Some(target), Enforcement::Required, hub.clone(), patience);
        assert!(probe.allows_tools().await);
        let _listener = TcpListener::bind(target).await.unwrap();
        let closed = async {
            while probe.allows_tools().await {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), closed).await.expect("the open network is seen");
        let frames = hub.with(|state| state.ready());
        let told = |frame: &WorkerFrame| matches!(frame, WorkerFrame::Isolation { isolated: true, .. });
        assert_eq!(frames.iter().map(told).collect::<Vec<_>>(), [true, false], "{frames:?}");
    }
}
