//! [`Runs`] on top of writers and readers.

use std::sync::Arc;

use async_trait::async_trait;
use cadre_protocol::ids::{ComponentRef, RunId, SessionId, WorkerId};

use crate::engine::driver::Driver;
use crate::engine::store::{self, SqlStore};
use crate::error::StoreError;
use crate::ops::accept::{self, Accept};
use crate::ops::{cancel, intents, models, queries, slots, start};
use crate::rows::{
    AcceptOutcome, AgentLoad, CancelOutcome, EndedRun, EventChunk, Lease, ModelCallFact, NewRun, Principal, QueueStats,
    RunDetail, RunFilter, RunRow, ServerEnd, StartedRun, Waiting,
};
use crate::shares::SlotLimits;
use crate::traits::Runs;

#[async_trait]
impl<D: Driver> Runs for SqlStore<D> {
    async fn accept(&self, run: NewRun) -> Result<AcceptOutcome, StoreError> {
        let (session_id, revision, agent) = (run.session_id.clone(), run.revision.clone(), Arc::clone(&run.agent));
        let run_id = run.run_id.clone();
        let prepared = Accept::prepare(run, &self.snapshots, &self.depths)?;
        let snapshots = Arc::clone(&self.snapshots);
        let (gives_slot, order) = (prepared.may_take_slot(), store::order(&session_id));
        let op = move |db: &mut dyn crate::db::Db| match prepared.run().chosen_id {
            true => intents::accept(db, &snapshots, &prepared),
            false => accept::accept(db, &prepared, false),
        };
        let writer = self.writer(order)?;
        let outcome = if gives_slot { writer.write_slots(order, op).await } else { writer.write(order, op).await }?;
        if matches!(outcome, AcceptOutcome::Accepted { .. }) {
            self.snapshots.remember(&revision, &agent);
            self.remember_order(&run_id, &session_id);
        }
        Ok(outcome)
    }

    async fn start(&self, run_id: &RunId, lease: &Lease, at_ms: u64) -> Result<Option<StartedRun>, StoreError> {
        let order = self.order_of(run_id).await?;
        let (snapshots, run_id, lease) = (Arc::clone(&self.snapshots), run_id.clone(), lease.clone());
        let op = move |db: &mut dyn crate::db::Db| start::start(db, &snapshots, &run_id, &lease, at_ms);
        let started = self.writer(order)?.write(order, op).await?;
        if let Some(started) = &started {
            self.snapshots.remember(&started.run.revision, &started.agent);
        }
        Ok(started)
    }

    async fn take(
        &self,
        run_id: &RunId,
        worker_id: &WorkerId,
        registration: &str,
        at_ms: u64,
    ) -> Result<Option<StartedRun>, StoreError> {
        let order = self.order_of(run_id).await?;
        let (snapshots, run_id) = (Arc::clone(&self.snapshots), run_id.clone());
        let (worker_id, registration) = (worker_id.clone(), registration.to_owned());
        let op =
            move |db: &mut dyn crate::db::Db| start::take(db, &snapshots, &run_id, &worker_id, &registration, at_ms);
        let started = self.writer(order)?.write(order, op).await?;
        if let Some(started) = &started {
            self.snapshots.remember(&started.run.revision, &started.agent);
        }
        Ok(started)
    }

    async fn grant(&self, component: Option<&ComponentRef>, limits: SlotLimits) -> Result<Vec<Waiting>, StoreError> {
        let component = component.cloned();
        self.writer(0)?.write_slots(0, move |db| slots::grant(db, component.as_ref(), limits)).await
    }

    async fn cancel(
        &self,
        run_id: &RunId,
        principal: Option<&Principal>,
        reason: &str,
        at_ms: u64,
    ) -> Result<CancelOutcome, StoreError> {
        let order = self.order_of(run_id).await?;
        let (snapshots, run_id) = (Arc::clone(&self.snapshots), run_id.clone());
        let (principal, reason) = (principal.cloned(), reason.to_owned());
        let op = move |db: &mut dyn crate::db::Db| {
            cancel::cancel(db, &snapshots, &run_id, principal.as_ref(), &reason, at_ms)
        };
        self.writer(order)?.write(order, op).await
    }

    async fn cancel_later(
        &self,
        run_id: &RunId,
        principal: Option<&Principal>,
        expires_at_ms: u64,
    ) -> Result<bool, StoreError> {
        let (run_id, principal) = (run_id.clone(), principal.cloned());
        let op = move |db: &mut dyn crate::db::Db| intents::remember(db, &run_id, principal.as_ref(), expires_at_ms);
        self.writer(0)?.write(0, op).await
    }

    async fn end(&self, end: ServerEnd) -> Result<Option<(EndedRun, Option<EventChunk>)>, StoreError> {
        let order = self.order_of(&end.run_id).await?;
        let snapshots = Arc::clone(&self.snapshots);
        self.writer(order)?.write(order, move |db| cancel::end(db, &snapshots, &end)).await
    }

    async fn waiting(&self, limit: u32) -> Result<Vec<Waiting>, StoreError> {
        self.read(move |db| queries::waiting(db, limit)).await
    }

    async fn waiting_run(&self, run_id: &RunId) -> Result<Option<Waiting>, StoreError> {
        let run_id = run_id.clone();
        self.read(move |db| queries::waiting_run(db, &run_id)).await
    }

    async fn waiting_in(&self, session_id: &SessionId) -> Result<Option<Waiting>, StoreError> {
        let session_id = session_id.clone();
        self.read(move |db| queries::waiting_in(db, &session_id)).await
    }

    async fn needs_slot(&self, run_id: &RunId) -> Result<bool, StoreError> {
        let run_id = run_id.clone();
        self.read(move |db| slots::is_needed(db, &run_id)).await
    }

    async fn run(&self, run_id: &RunId) -> Result<Option<RunRow>, StoreError> {
        let run_id = run_id.clone();
        self.read(move |db| queries::run(db, &run_id, None)).await
    }

    async fn run_of(&self, run_id: &RunId, owner: &Principal) -> Result<Option<RunRow>, StoreError> {
        let (run_id, owner) = (run_id.clone(), owner.clone());
        self.read(move |db| queries::run(db, &run_id, Some(&owner))).await
    }

    async fn run_of_object(&self, namespace: &str, uid: &str) -> Result<Option<RunRow>, StoreError> {
        let (namespace, uid) = (namespace.to_owned(), uid.to_owned());
        self.read(move |db| queries::run_of_object(db, &namespace, &uid)).await
    }

    async fn detail(&self, run_id: &RunId, of: Option<&Principal>) -> Result<Option<RunDetail>, StoreError> {
        let (snapshots, run_id, of) = (Arc::clone(&self.snapshots), run_id.clone(), of.cloned());
        let detail = self.read(move |db| queries::detail(db, &snapshots, &run_id, of.as_ref())).await?;
        if let Some(detail) = &detail {
            self.snapshots.remember(&detail.run.revision, &detail.agent);
            self.remember_order(&detail.run.run_id, &detail.run.session_id);
        }
        Ok(detail)
    }

    async fn trace_parent(&self, run_id: &RunId) -> Result<Option<String>, StoreError> {
        let run_id = run_id.clone();
        self.read(move |db| queries::trace_parent(db, &run_id)).await
    }

    async fn model_calls(&self, run_id: &RunId) -> Result<Vec<ModelCallFact>, StoreError> {
        let run_id = run_id.clone();
        self.read(move |db| models::of_run(db, &run_id)).await
    }

    async fn list(&self, filter: RunFilter) -> Result<(Vec<RunRow>, u64), StoreError> {
        self.read(move |db| queries::list(db, &filter)).await
    }

    async fn waiting_on(&self, run_id: &RunId) -> Result<Option<RunId>, StoreError> {
        let run_id = run_id.clone();
        self.read(move |db| queries::waiting_on(db, &run_id)).await
    }

    async fn waiting_count(&self) -> Result<u64, StoreError> {
        self.read(queries::waiting_count).await
    }

    async fn stats(&self) -> Result<QueueStats, StoreError> {
        self.read(queries::stats).await
    }

    async fn agent_loads(&self) -> Result<Vec<AgentLoad>, StoreError> {
        self.read(queries::agent_loads).await
    }
}
