//! Acceptance: from what a caller asks to a durable run, and to its worker at once where one is warm.

use std::sync::Arc;
use std::time::Instant;

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::{ComponentRef, Revision, RunId, SessionId};
use cadre_protocol::nesting;
use cadre_protocol::run::{Attachment, RunInput};
use cadre_store::rows::{AcceptOutcome, Claim, Lease, NewRun, RunRow, Waiting};
use cadre_store::shares::BlobPlace;

use super::hub::{Listener, Wants};
use super::lease::lease_of;
use super::scope::Writer;
use super::submit::NewFile;
use super::{DomainError, Service, Submit, Submitted};

/// Most files of one run.
const MAX_FILES: usize = 64;

impl Service {
    /// Accepts a run and has it placed. When this returns, the run is durable. Goes on to its end even if the caller
    /// goes away.
    ///
    /// # Errors
    /// Nothing was accepted.
    pub async fn submit(&self, submit: Submit) -> Result<Submitted, DomainError> {
        self.submit_for(submit, None).await.map(|(submitted, _)| submitted)
    }

    /// The same for a caller who wants to hear of the run: nothing of it is missed by the listener. There is none for a
    /// run that was accepted before, or has ended.
    ///
    /// # Errors
    /// Nothing was accepted.
    pub async fn submit_for(
        &self,
        submit: Submit,
        wants: Option<Wants>,
    ) -> Result<(Submitted, Option<Listener>), DomainError> {
        if self.0.stopping.is_cancelled() {
            return Err(DomainError::ShuttingDown);
        }
        let service = self.clone();
        // A caller that hangs up must not leave a reserved seat behind.
        let accepted = self.0.tasks.spawn(async move { service.accept(submit, wants).await });
        accepted.await.unwrap_or(Err(DomainError::ShuttingDown))
    }

    async fn accept(&self, submit: Submit, wants: Option<Wants>) -> Result<(Submitted, Option<Listener>), DomainError> {
        let began = Instant::now();
        check_nesting(&submit)?;
        // First of all: what was accepted once is answered even if nothing new would be.
        if let Some(submitted) = self.accepted_before(&submit).await? {
            return Ok((submitted, None));
        }
        let agent = self.resolve(&submit).await?;
        let fresh = submit.session_id.is_none() && submit.run_id.is_none() && submit.idempotency.is_none();
        let session_id = submit.session_id.clone().unwrap_or_else(SessionId::generate);
        let files = self.store_files(&session_id, &submit).await?;
        let new = self.new_run(submit, agent, session_id, files);
        let (session_id, run_id) = (new.session_id.clone(), new.run_id.clone());
        let is_limited = self.is_limited(&new.agent);
        let listener = wants.map(|wants| self.0.hub.listen(&run_id, wants));
        let new = self.reserve(new, fresh);
        let claim = new.claim.clone().map(|claim| writer_of(&claim));
        let outcome = self.0.store.accept(new).await;
        let started = matches!(&outcome, Ok(AcceptOutcome::Accepted { started: Some(_), .. }));
        if claim.is_some() && !started {
            self.release_seat(&session_id, &run_id, true);
            if !fresh {
                // Another run of the session may have found it reserved meanwhile.
                self.place_waiting_in(&session_id);
            }
        }
        let submitted = self.accepted(&run_id, outcome?, claim, is_limited).await?;
        self.0.metrics.accepted(began.elapsed());
        let listener = listener.filter(|_| !submitted.replayed && !submitted.run.status.is_terminal());
        Ok((submitted, listener))
    }

    /// Whether runs of the agent need slots.
    pub(crate) fn is_limited(&self, agent: &AgentSnapshot) -> bool {
        self.limits_slots() || agent.max_concurrent_sessions.is_some()
    }

    /// Places a run that has become the head of its line. One that needs a slot waits for its turn.
    pub(crate) async fn place_new(&self, run: &RunRow, is_limited: bool) {
        if !is_limited {
            self.place(waiting(run)).await;
        } else if let Err(error) = self.grant(Some(&run.component)).await {
            // It is accepted: the slot is given by the next sweep.
            tracing::warn!(run_id = %run.run_id, category = error.category(), "run waits for a sweep");
        }
    }

    /// Reserves a warm worker, so that acceptance and start share a commit.
    fn reserve(&self, new: NewRun, fresh: bool) -> NewRun {
        let claim = self.board().claim_early(&new.session_id, &new.run_id, &new.component, fresh);
        let claim = claim.map(|(writer, lease)| match lease {
            Some(lease) => Claim::Held(lease),
            None => Claim::New { worker_id: writer.worker_id, registration: writer.registration },
        });
        NewRun { claim, ..new }
    }

    pub(super) fn new_run(
        &self,
        submit: Submit,
        agent: (Arc<AgentSnapshot>, Revision),
        session_id: SessionId,
        files: Vec<Attachment>,
    ) -> NewRun {
        let (agent, revision) = agent;
        NewRun {
            chosen_id: submit.run_id.is_some(),
            run_id: submit.run_id.unwrap_or_else(RunId::generate),
            session_id,
            component: submit.component,
            principal: submit.principal,
            user_id: submit.user_id,
            timeout_seconds: submit.timeout_seconds.or(agent.timeout_seconds),
            agent,
            revision,
            input: RunInput {
                text: submit.text,
                files,
                dependencies: submit.dependencies,
                output_schema: submit.output_schema,
            },
            metadata: submit.metadata,
            session_state: submit.session_state,
            origin: submit.origin,
            idempotency: submit.idempotency,
            trace_parent: submit.trace_parent.filter(|_| self.0.traces.wanted()).map(|parent| parent.text()),
            max_queue_depth: self.0.limits.max_queue_depth,
            refuse_if_busy: submit.refuse_if_busy,
            max_running: self.0.limits.max_running,
            shares: self.0.limits.shares.of_record(),
            claim: None,
            at_ms: self.now_ms(),
        }
    }

    pub(super) async fn accepted(
        &self,
        run_id: &RunId,
        outcome: AcceptOutcome,
        claim: Option<Writer>,
        is_limited: bool,
    ) -> Result<Submitted, DomainError> {
        match outcome {
            AcceptOutcome::Accepted { run, waiting_on, started } => {
                self.tell_change(&run);
                match (started, claim) {
                    (Some(started), Some(writer)) => {
                        let lease = lease_of(&writer, started.epoch);
                        self.assign(*started, lease).await;
                    }
                    // A cancel was there before it.
                    _ if run.status.is_terminal() => self.0.metrics.ended(run.status),
                    _ if waiting_on.is_some() => {}
                    _ => self.place_new(&run, is_limited).await,
                }
                Ok(Submitted { run: *run, replayed: false, waiting_on })
            }
            AcceptOutcome::Replayed(run) => self.replayed(*run).await.map(|continued| continued.submitted),
            AcceptOutcome::IdempotencyConflict => Err(DomainError::IdempotencyConflict),
            AcceptOutcome::RunExists => Err(DomainError::RunExists(run_id.to_string())),
            AcceptOutcome::SessionBusy(run_id) => Err(DomainError::SessionBusy(run_id)),
            AcceptOutcome::QueueFull => Err(DomainError::QueueFull),
            AcceptOutcome::NamespaceFull(namespace) => Err(DomainError::NamespaceQueueFull(namespace)),
            AcceptOutcome::ForeignSession => Err(DomainError::ForeignSession),
            AcceptOutcome::OtherComponent(component) => Err(self.other_agents(&component)),
        }
    }

    /// The agent's snapshot, with the run's own retries. Waits a little for an agent that is not known yet.
    pub(super) async fn resolve(&self, submit: &Submit) -> Result<(Arc<AgentSnapshot>, Revision), DomainError> {
        let found = self.find_agent(&submit.component).await;
        let name = || submit.component.api_id(self.default_namespace());
        let found = found.ok_or_else(|| DomainError::AgentNotFound(name()))?;
        let resolved = found.state.map_err(|reason| DomainError::AgentNotReady { agent: name(), reason })?;
        match submit.retries {
            Some(retries) if retries != resolved.snapshot.retry.retries => {
                let mut own = (*resolved.snapshot).clone();
                own.retry.retries = retries;
                let revision = own.revision();
                Ok((Arc::new(own), revision))
            }
            _ => Ok((resolved.snapshot, resolved.revision)),
        }
    }

    async fn find_agent(&self, component: &ComponentRef) -> Option<crate::catalog::CatalogAgent> {
        let mut changes = self.0.catalog.changes();
        changes.mark_unchanged();
        let seen = async {
            loop {
                if let Some(agent) = self.0.catalog.agent(component) {
                    return Some(agent);
                }
                changes.changed().await.ok()?;
            }
        };
        tokio::time::timeout(self.0.limits.agent_wait, seen).await.ok().flatten()
    }

    fn other_agents(&self, component: &ComponentRef) -> DomainError {
        DomainError::OtherAgentsSession(component.api_id(self.default_namespace()))
    }

    async fn store_files(&self, session_id: &SessionId, submit: &Submit) -> Result<Vec<Attachment>, DomainError> {
        check_files(&submit.files)?;
        if submit.files.is_empty() {
            return Ok(Vec::new());
        }
        // Bytes must not land in a stranger's session.
        let session = self.0.store.session(session_id).await?;
        if let Some(session) = session {
            if session.principal != submit.principal {
                return Err(DomainError::ForeignSession);
            }
            if let Some(component) = session.component.filter(|component| *component != submit.component) {
                return Err(self.other_agents(&component));
            }
        }
        let place = BlobPlace {
            session_id: session_id.clone(),
            namespace: submit.component.namespace.clone(),
            max_bytes: self.0.limits.shares.max_file_bytes,
        };
        let mut stored = Vec::with_capacity(submit.files.len());
        for file in &submit.files {
            let key = self.0.store.put(&place, file.bytes.to_vec()).await?;
            let key = key.ok_or_else(|| DomainError::NamespaceFilesFull(place.namespace.clone()))?;
            stored.push(Attachment {
                name: file.name.clone(),
                media_type: file.media_type.clone(),
                size: file.bytes.len() as u64,
                digest: key.digest,
            });
        }
        Ok(stored)
    }
}

fn check_nesting(submit: &Submit) -> Result<(), DomainError> {
    let Submit { session_state, dependencies, metadata, output_schema, .. } = submit;
    let objects = [("session_state", session_state), ("dependencies", dependencies), ("metadata", metadata)];
    let deep = objects.into_iter().find(|(_, object)| !nesting::fields_fit(object)).map(|(name, _)| name);
    let deep =
        deep.or_else(|| output_schema.as_ref().is_some_and(|schema| !nesting::fits(schema)).then_some("output_schema"));
    match deep {
        Some(name) => Err(DomainError::Invalid(format!("{name} is nested deeper than {} levels", nesting::MAX_LEVELS))),
        None => Ok(()),
    }
}

fn check_files(files: &[NewFile]) -> Result<(), DomainError> {
    if files.len() > MAX_FILES {
        return Err(DomainError::TooLarge(format!("a run may have at most {MAX_FILES} files")));
    }
    let mut names = std::collections::HashSet::new();
    for file in files {
        if !Attachment::is_valid_name(&file.name) {
            return Err(DomainError::Invalid(format!("{:?} is no valid file name", file.name)));
        }
        if !names.insert(&file.name) {
            return Err(DomainError::Invalid(format!("there are two files called {:?}", file.name)));
        }
        if file.bytes.len() as u64 > Attachment::MAX_BYTES {
            let most = Attachment::MAX_BYTES >> 20;
            return Err(DomainError::TooLarge(format!("file {:?} is larger than {most} MiB", file.name)));
        }
    }
    Ok(())
}

fn writer_of(claim: &Claim) -> Writer {
    match claim {
        Claim::Held(Lease { worker_id, registration, epoch: _ }) | Claim::New { worker_id, registration } => {
            Writer { worker_id: worker_id.clone(), registration: registration.clone() }
        }
    }
}

/// A run as one that waits for a worker.
pub(crate) fn waiting(run: &RunRow) -> Waiting {
    Waiting {
        run_id: run.run_id.clone(),
        session_id: run.session_id.clone(),
        component: run.component.clone(),
        status: run.status,
        created_at_ms: run.created_at_ms,
    }
}
