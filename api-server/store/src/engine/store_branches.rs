//! [`Branches`] on top of writers.

use std::sync::Arc;

use async_trait::async_trait;

use crate::branches::{Branches, Fork, KeyOf, Keyed, ResumeOutcome, Resumption, SessionFork, SessionForkOutcome};
use crate::engine::driver::Driver;
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::ops::accept::Accept;
use crate::ops::resume::Prepared;
use crate::ops::{fork, fork_session, resume};
use crate::rows::{AcceptOutcome, NewRun};

#[async_trait]
impl<D: Driver> Branches for SqlStore<D> {
    async fn fork(&self, run: NewRun, fork: Fork) -> Result<Option<AcceptOutcome>, StoreError> {
        let run = NewRun { claim: None, ..run };
        let (session_id, revision, agent) = (run.session_id.clone(), run.revision.clone(), Arc::clone(&run.agent));
        let run_id = run.run_id.clone();
        let prepared = Accept::prepare(run, &self.snapshots, &self.depths)?;
        let outcome = self.write(&session_id, move |db| fork::fork(db, &prepared, &fork)).await?;
        if matches!(outcome, Some(AcceptOutcome::Accepted { .. })) {
            self.snapshots.remember(&revision, &agent);
            self.remember_order(&run_id, &session_id);
        }
        Ok(outcome)
    }

    async fn keyed(&self, of: KeyOf) -> Result<Option<Keyed>, StoreError> {
        self.read(move |db| resume::keyed(db, &of)).await
    }

    async fn resume(&self, resumption: Resumption) -> Result<ResumeOutcome, StoreError> {
        let order = self.order_of(&resumption.run_id).await?;
        let (revision, agent) = (resumption.revision.clone(), Arc::clone(&resumption.agent));
        let prepared = Prepared::new(resumption, &self.snapshots)?;
        let depths = Arc::clone(&self.depths);
        let outcome = self.writer(order)?.write(order, move |db| resume::resume(db, &depths, &prepared)).await?;
        if matches!(outcome, ResumeOutcome::Resumed { .. }) {
            self.snapshots.remember(&revision, &agent);
        }
        Ok(outcome)
    }

    async fn fork_session(&self, fork: SessionFork) -> Result<SessionForkOutcome, StoreError> {
        let (source, bytes) = (fork.source.clone(), Arc::clone(&self.bytes));
        self.write(&source, move |db| fork_session::fork_session(db, &bytes, &fork)).await
    }
}
