//! `GET /operator/v1/feed`: what status is made from, as JSON lines: everything known, `Synced`, then changes. Of runs that
//! ended longer ago than [`Limits::ended_runs_told`](crate::domain::Limits) nothing is said: the operator asks for those that
//! it still needs ([`super::look`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cadre_gateway::Gateway;
use cadre_protocol::feed::{AgentReport, CredentialReport, FeedItem, IsolationReport};
use cadre_protocol::ids::RunId;
use cadre_protocol::run::RunStatus;
use cadre_store::approvals::ApprovalRow;
use cadre_store::rows::RunRow;
use futures::Stream;
use http::header;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::only_operator;
use super::report::report;
use crate::auth::pod::Caller;
use crate::domain::{Change, DomainError, Service};
use crate::listen::worker::WorkerState;

/// Runs read in one go.
const PAGE: u64 = 500;
/// Least time between two looks at agents' load: status is written far more seldom.
const LOAD_EVERY: Duration = Duration::from_secs(1);
/// Time between looks at credentials: Secrets are not watched.
const CREDENTIALS_EVERY: Duration = Duration::from_secs(5);
/// Longest silence.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What feeds are made from.
#[derive(Clone)]
pub struct Feed {
    /// The domain.
    pub service: Service,
    /// Who knows credentials.
    pub gateway: Arc<Gateway>,
}

/// Follows the feed until one side goes.
pub async fn follow(State(state): State<WorkerState>, Extension(caller): Extension<Caller>) -> Response {
    if let Some(forbidden) = only_operator(&caller) {
        return forbidden;
    }
    let body = Body::from_stream(lines(state.feed));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

/// What a reader has been told.
#[derive(Default)]
struct Told {
    credentials: HashMap<(String, String), CredentialReport>,
    agents: HashMap<(String, String), AgentReport>,
    isolation: HashMap<(String, String), IsolationReport>,
}

fn lines(feed: Feed) -> impl Stream<Item = Result<Bytes, DomainError>> + Send + 'static {
    async_stream::try_stream! {
        let mut changes = feed.service.changes();
        let mut catalog = feed.service.catalog().changes();
        let mut told = Told::default();
        let (now_ms, mut offset) = (feed.service.now_ms(), 0);
        loop {
            let runs = feed.service.runs_to_tell(now_ms, offset, PAGE).await?;
            let (count, items) = (runs.len() as u64, feed.runs(&runs).await?);
            yield encode(&items);
            if count < PAGE {
                break;
            }
            offset += PAGE;
        }
        let mut first = feed.credentials(&mut told).await;
        first.extend(feed.agents(&mut told).await?);
        first.extend(feed.isolation(&mut told).await?);
        first.push(FeedItem::Synced {});
        yield encode(&first);

        let mut load = tokio::time::interval(LOAD_EVERY);
        let mut credentials = tokio::time::interval(CREDENTIALS_EVERY);
        // Of its own, so that looks which find nothing new don't put it off.
        let mut alive = tokio::time::interval(KEEP_ALIVE);
        let mut load_changed = false;
        loop {
            let news = tokio::select! {
                change = next_change(&mut changes) => change.map_or(News::End, News::Changes),
                _ = load.tick(), if load_changed => News::Load,
                _ = credentials.tick() => News::Credentials,
                Ok(()) = catalog.changed() => News::Credentials,
                _ = alive.tick() => News::Nothing,
                () = feed.service.stopping().cancelled() => News::End,
            };
            let items = match news {
                // A reader that missed something starts anew and then has everything.
                News::Changes(Changes { missed: true, .. }) | News::End => return,
                News::Changes(Changes { runs, isolation, load, missed: false }) => {
                    load_changed |= load;
                    let mut items = feed.changed(runs).await?;
                    items.extend(isolation);
                    items
                }
                News::Load => {
                    // A record that is away is asked again with the next look.
                    load_changed = false;
                    feed.agents(&mut told).await.unwrap_or_default()
                }
                News::Credentials => {
                    // What happens at other replicas is told late, or never: it is looked up.
                    load_changed = true;
                    let mut items = feed.credentials(&mut told).await;
                    items.extend(feed.isolation(&mut told).await.unwrap_or_default());
                    items
                }
                News::Nothing => vec![FeedItem::KeepAlive {}],
            };
            if !items.is_empty() {
                yield encode(&items);
            }
        }
    }
}

/// What a feed wakes up for.
enum News {
    Changes(Changes),
    Load,
    Credentials,
    Nothing,
    End,
}

/// Changes that came together.
#[derive(Default)]
struct Changes {
    runs: HashSet<RunId>,
    isolation: Vec<FeedItem>,
    load: bool,
    missed: bool,
}

/// Waits for a change and takes all that are there. None when the server ends.
async fn next_change(changes: &mut Receiver<Change>) -> Option<Changes> {
    let mut together = Changes::default();
    let mut next = changes.recv().await;
    loop {
        match next {
            Ok(Change::Run(run_id)) => {
                together.runs.insert(run_id);
            }
            Ok(Change::Load) => together.load = true,
            Ok(Change::Isolation(report)) => together.isolation.push(FeedItem::Isolation(report)),
            Err(RecvError::Lagged(_)) => together.missed = true,
            Err(RecvError::Closed) => return None,
        }
        next = match changes.try_recv() {
            Ok(change) => Ok(change),
            Err(tokio::sync::broadcast::error::TryRecvError::Lagged(missed)) => Err(RecvError::Lagged(missed)),
            Err(_) => return Some(together),
        };
    }
}

/// What a run waits for, if it is paused.
pub async fn approvals(service: &Service, run: &RunRow) -> Result<Vec<ApprovalRow>, DomainError> {
    Ok(match run.status {
        RunStatus::Paused => service.store().approvals(&run.run_id).await?,
        _ => Vec::new(),
    })
}

impl Feed {
    async fn runs(&self, runs: &[RunRow]) -> Result<Vec<FeedItem>, DomainError> {
        let mut items = Vec::with_capacity(runs.len());
        for run in runs {
            let waiting_on = match run.started_at_ms {
                None if !run.status.is_terminal() => self.service.store().waiting_on(&run.run_id).await?,
                _ => None,
            };
            let waiting_for = match waiting_on {
                Some(_) => None,
                None => self.service.waits_for(run).await?,
            };
            let approvals = approvals(&self.service, run).await?;
            let report = report(run, waiting_on.map(|run_id| run_id.to_string()), waiting_for, &approvals);
            items.extend(report.map(|report| FeedItem::Run(Box::new(report))));
        }
        Ok(items)
    }

    async fn changed(&self, run_ids: HashSet<RunId>) -> Result<Vec<FeedItem>, DomainError> {
        let mut runs = Vec::with_capacity(run_ids.len());
        for run_id in run_ids {
            runs.extend(self.service.store().run(&run_id).await?);
        }
        self.runs(&runs).await
    }

    async fn agents(&self, told: &mut Told) -> Result<Vec<FeedItem>, DomainError> {
        let loads = self.service.store().agent_loads().await?;
        let news = loads.into_iter().filter(|load| {
            let key = (load.namespace.clone(), load.name.clone());
            told.agents.insert(key, load.clone()).as_ref() != Some(load)
        });
        Ok(news.map(FeedItem::Agent).collect())
    }

    async fn isolation(&self, told: &mut Told) -> Result<Vec<FeedItem>, DomainError> {
        let reports = self.service.isolation().await?;
        let key = |report: &IsolationReport| (report.namespace.clone(), report.sandbox.clone());
        let there: HashSet<_> = reports.iter().map(key).collect();
        told.isolation.retain(|known, _| there.contains(known));
        let news = reports
            .into_iter()
            .filter(|report| told.isolation.insert(key(report), report.clone()).as_ref() != Some(report));
        Ok(news.map(FeedItem::Isolation).collect())
    }

    async fn credentials(&self, told: &mut Told) -> Vec<FeedItem> {
        let mut news = Vec::new();
        let models = self.service.catalog().models();
        told.credentials.retain(|(namespace, name), _| {
            models.iter().any(|model| model.namespace == *namespace && model.name == *name)
        });
        for model in models {
            let (state, message) = self.gateway.credential_state(&model).await;
            let report = CredentialReport {
                namespace: model.namespace.clone(),
                model: model.name.clone(),
                generation: model.generation,
                state,
                message,
            };
            let key = (report.namespace.clone(), report.model.clone());
            if told.credentials.insert(key, report.clone()).as_ref() != Some(&report) {
                news.push(FeedItem::Credential(report));
            }
        }
        news
    }
}

fn encode(items: &[FeedItem]) -> Bytes {
    let mut text = String::new();
    for item in items {
        // Plain data always serializes.
        if let Ok(line) = serde_json::to_string(item) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    Bytes::from(text)
}
