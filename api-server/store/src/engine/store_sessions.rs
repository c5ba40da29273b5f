//! [`Sessions`] on top of writers and readers.

use std::sync::Arc;

use async_trait::async_trait;
use cadre_protocol::ids::SessionId;
use cadre_protocol::run::RunMetrics;

use crate::engine::driver::Driver;
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::ops::{session_edit, session_list, session_runs, sessions};
use crate::rows::sessions::{NewSession, RunPage, SessionEdit, SessionFilter, SessionRuns};
use crate::rows::{Principal, RunDetail, SessionRow};
use crate::traits::Sessions;

#[async_trait]
impl<D: Driver> Sessions for SqlStore<D> {
    async fn session(&self, session_id: &SessionId) -> Result<Option<SessionRow>, StoreError> {
        let session_id = session_id.clone();
        self.read(move |db| sessions::session(db, &session_id, None)).await
    }

    async fn session_of(&self, session_id: &SessionId, owner: &Principal) -> Result<Option<SessionRow>, StoreError> {
        let (session_id, owner) = (session_id.clone(), owner.clone());
        self.read(move |db| sessions::session(db, &session_id, Some(&owner))).await
    }

    async fn sessions(&self, filter: SessionFilter) -> Result<(Vec<SessionRow>, u64), StoreError> {
        self.read(move |db| session_list::sessions(db, &filter)).await
    }

    async fn session_runs(&self, of: SessionRuns) -> Result<RunPage, StoreError> {
        self.read(move |db| session_runs::page(db, &of)).await
    }

    async fn session_details(&self, of: SessionRuns) -> Result<Vec<RunDetail>, StoreError> {
        let snapshots = Arc::clone(&self.snapshots);
        self.read(move |db| session_runs::details(db, &snapshots, &of)).await
    }

    async fn session_metrics(&self, session_id: &SessionId) -> Result<RunMetrics, StoreError> {
        let session_id = session_id.clone();
        self.read(move |db| session_runs::metrics(db, &session_id)).await
    }

    async fn create(&self, new: NewSession) -> Result<Option<SessionRow>, StoreError> {
        let session_id = new.session_id.clone();
        self.write(&session_id, move |db| session_edit::create(db, &new)).await
    }

    async fn edit(
        &self,
        session_id: &SessionId,
        of: Option<&Principal>,
        edit: SessionEdit,
        at_ms: u64,
    ) -> Result<Option<SessionRow>, StoreError> {
        let (session, of) = (session_id.clone(), of.cloned());
        self.write(session_id, move |db| session_edit::edit(db, &session, of.as_ref(), &edit, at_ms)).await
    }

    async fn delete(&self, session_ids: &[SessionId], of: Option<&Principal>) -> Result<Vec<SessionId>, StoreError> {
        let mut removed = Vec::new();
        for session_id in session_ids {
            let (session, of) = (session_id.clone(), of.cloned());
            if self.write(session_id, move |db| sessions::delete(db, &session, of.as_ref())).await? {
                removed.push(session_id.clone());
            }
        }
        Ok(removed)
    }
}
