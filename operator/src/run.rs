//! Wiring: health at once, then CRDs, then leadership, then controllers, until told to stop.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::caches::{self, Caches, Receivers};
use crate::config::Settings;
use crate::context::Shared;
use crate::controllers::{agent, model, run as runs, sandbox};
use crate::driver::drive;
use crate::events::{self, Teller};
use crate::feed::client::ApiClient;
use crate::feed::follow::follow;
use crate::feed::state::FeedState;
use crate::health::{self, Health};
use crate::leader::{Candidate, WIND_UP};
use crate::metrics::Metrics;
use crate::status::StatusWriter;
use crate::worker_address::WorkerAddress;

/// Runs the operator until `stop`, or until leadership is lost.
///
/// # Errors
/// When it can't start, or has lost its lease: it must then start anew.
pub async fn run(client: Client, settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let (health, metrics) = (Arc::new(Health::default()), Arc::new(Metrics::new()));
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("serve health and metrics on {}", settings.listen))?;
    let server = tokio::spawn(health::serve(listener, health.clone(), metrics.clone(), stop.clone()));
    let work = async {
        health.wait_for_crds(&client).await;
        let candidate = Candidate::new(client.clone(), &settings.namespace, settings.identity.clone());
        let since = candidate.acquire().await;
        (candidate, since)
    };
    let Some((candidate, since)) = stop.run_until_cancelled(work).await else {
        return server.await.context("health")?.context("serve health");
    };
    tracing::info!(identity = settings.identity, "leading");
    metrics.leads(true);
    let lost = lead(client, settings, metrics.clone(), (&candidate, since), &stop).await?;
    metrics.leads(false);
    anyhow::ensure!(!lost, "lost the leader's lease");
    server.await.context("health")?.context("serve health")
}

/// Leads until told to stop; whether the lease was lost.
async fn lead(
    client: Client,
    settings: Settings,
    metrics: Arc<Metrics>,
    (candidate, since): (&Candidate, Instant),
    stop: &CancellationToken,
) -> anyhow::Result<bool> {
    let stop_work = stop.child_token();
    let mut tasks = controllers(client, settings, metrics, &stop_work)?;
    // None of them ends by itself: a leader that lacks one would lead and do nothing.
    let broken = tokio::select! {
        () = candidate.keep(since, stop) => false,
        _ = tasks.join_next() => !stop.is_cancelled(),
    };
    let lost = !broken && !stop.is_cancelled();
    stop_work.cancel();
    if lost {
        // Another replica may lead soon: no write that is still under way may follow.
        tasks.abort_all();
    }
    wind_up(&mut tasks, WIND_UP).await;
    if !lost {
        candidate.release().await;
    }
    anyhow::ensure!(!broken, "a controller has ended");
    Ok(lost)
}

/// Waits for tasks that were told to stop. What waits for an answer that does not come is broken off, before the lease
/// is over.
async fn wind_up(tasks: &mut JoinSet<()>, limit: Duration) {
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(limit, all).await.is_err() {
        tracing::warn!("work that waits for an answer is broken off");
        tasks.shutdown().await;
    }
}

/// Starts all tasks of a leader. They end after `stop`.
///
/// # Errors
/// When the client of the API server can't be made.
pub fn controllers(
    client: Client,
    settings: Settings,
    metrics: Arc<Metrics>,
    stop: &CancellationToken,
) -> anyhow::Result<JoinSet<()>> {
    let (teller, stories) = Teller::new();
    let api = ApiClient::new(settings.worker_url.clone(), settings.token_file.clone()).context("API server")?;
    let worker = WorkerAddress::new(settings.worker_url.clone());
    let feed = Arc::new(FeedState::default());
    let status = StatusWriter::default();
    let scopes = scopes(&settings.namespaces);
    let shared = Arc::new(Shared { client, settings, feed, api, status, teller, metrics, worker });
    let mut tasks = JoinSet::new();
    let instance = shared.settings.identity.clone();
    tasks.spawn(events::publish(shared.client.clone(), instance, stories, stop.clone()));
    let follower = shared.clone();
    let stop_feed = stop.clone();
    tasks.spawn(async move { follow(&follower.api, &follower.feed, &follower.metrics, stop_feed).await });
    for namespace in scopes {
        scope(&shared, namespace, &mut tasks, stop);
    }
    Ok(tasks)
}

fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    let named: Vec<_> = namespaces.iter().filter(|name| !name.is_empty()).cloned().map(Some).collect();
    if named.is_empty() { vec![None] } else { named }
}

/// Starts watches and controllers of one namespace, or of all.
fn scope(shared: &Arc<Shared>, namespace: Option<String>, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
    // Subscribed before the caches fill, so that nothing is missed in between.
    let changes = shared.feed.subscribe();
    let (caches, receivers) = caches::start(&shared.client, namespace, tasks, stop);
    tasks.spawn(relay(changes, caches.clone(), stop.clone()));
    let (shared, stop) = (shared.clone(), stop.clone());
    tasks.spawn(async move {
        if stop.run_until_cancelled(caches.wait_until_ready()).await.is_some() {
            drive_all(&shared, &caches, receivers, &stop).await;
        }
    });
}

async fn drive_all(shared: &Arc<Shared>, caches: &Arc<Caches>, receivers: Receivers, stop: &CancellationToken) {
    let Receivers { models, agents, runs, sandboxes, deleted_runs } = receivers;
    let stop = || stop.clone();
    let model = model::Controller { shared: shared.clone() };
    let agent = agent::Controller { shared: shared.clone(), caches: caches.clone() };
    let run = runs::Controller::new(shared.clone(), caches.clone());
    let sandbox = sandbox::Controller::new(shared.clone(), caches.clone());
    futures::join!(
        drive(model, shared.clone(), caches.models.clone(), models, stop()),
        drive(agent, shared.clone(), caches.agents.clone(), agents, stop()),
        drive(run, shared.clone(), caches.runs.clone(), runs, stop()),
        drive(sandbox, shared.clone(), caches.sandboxes.clone(), sandboxes, stop()),
        runs::gone::follow(shared.clone(), caches.clone(), deleted_runs, stop()),
    );
}

/// Passes on what the API server tells.
async fn relay(
    mut changes: tokio::sync::broadcast::Receiver<crate::feed::state::Subject>,
    caches: Arc<Caches>,
    stop: CancellationToken,
) {
    while let Some(change) = stop.run_until_cancelled(changes.recv()).await {
        match change {
            Ok(subject) => caches.told(&subject),
            Err(RecvError::Lagged(_)) => caches.look_at_all(),
            Err(RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_means_all() {
        assert_eq!(scopes(&[]), [None]);
        assert_eq!(scopes(&[String::new()]), [None]);
        assert_eq!(scopes(&["a".into(), "b".into()]), [Some("a".into()), Some("b".into())]);
    }

    #[tokio::test]
    async fn work_that_is_not_answered_does_not_hold_up_the_end() {
        let mut tasks = JoinSet::new();
        tasks.spawn(std::future::pending());
        let ended = wind_up(&mut tasks, Duration::from_millis(10));
        assert!(timeout(Duration::from_secs(120), ended).await.is_ok());
        assert!(tasks.is_empty());
    }

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    #[tokio::test]
    async fn an_operator_whose_health_nobody_could_ask_for_does_not_start() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let flags = ["operator", "--worker-url=http://a:1", "--agent-image=a", "--sandbox-image=s"];
        let flags = flags.into_iter().map(str::to_owned).chain([format!("--listen={address}")]);
        let settings = <Flags as clap::Parser>::try_parse_from(flags).unwrap().settings;
        let silence = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let running = run(Client::new(silence, "default"), settings, CancellationToken::new());
        let ended = timeout(Duration::from_secs(120), running).await.expect("it runs without health");
        let error = format!("{:#}", ended.unwrap_err());
        assert!(error.contains(&address), "{error}");
    }
}
