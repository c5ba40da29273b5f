//! Sessions: making, finding, changing and ending them, with all that belongs to them.

use cadre_protocol::ids::{ComponentRef, SessionId};
use cadre_protocol::nesting;
use cadre_protocol::run::RunMetrics;
use cadre_store::rows::sessions::{NewSession, RunPage, SessionEdit, SessionFilter, SessionRuns};
use cadre_store::rows::{Ends, Principal, RunDetail, RunFilter, SessionRow};
use futures::StreamExt as _;
use serde_json::{Map, Value};

use super::{DomainError, Service};

/// Sandboxes whose removal is asked for at once.
const REMOVED_AT_ONCE: usize = 16;

impl Service {
    /// A session. `principal` limits it to its own.
    ///
    /// # Errors
    /// [`DomainError::SessionNotFound`].
    pub async fn session(&self, id: &SessionId, principal: Option<&Principal>) -> Result<SessionRow, DomainError> {
        let session = match principal {
            Some(owner) => self.0.store.session_of(id, owner).await?,
            None => self.0.store.session(id).await?,
        };
        session.ok_or_else(|| DomainError::SessionNotFound(id.to_string()))
    }

    /// A page of the sessions that match, with the number of all.
    ///
    /// # Errors
    /// The record's.
    pub async fn sessions(&self, filter: SessionFilter) -> Result<(Vec<SessionRow>, u64), DomainError> {
        Ok(self.0.store.sessions(filter).await?)
    }

    /// A page of a session's runs, newest first.
    ///
    /// # Errors
    /// The record's.
    pub async fn session_runs(&self, of: SessionRuns) -> Result<RunPage, DomainError> {
        Ok(self.0.store.session_runs(of).await?)
    }

    /// The newest of a session's runs with their conversations, oldest first: as many as there is room for.
    ///
    /// # Errors
    /// The record's.
    pub async fn session_details(&self, of: SessionRuns) -> Result<Vec<RunDetail>, DomainError> {
        Ok(self.0.store.session_details(of).await?)
    }

    /// Tokens and cost of all runs of a session.
    ///
    /// # Errors
    /// The record's.
    pub async fn session_metrics(&self, id: &SessionId) -> Result<RunMetrics, DomainError> {
        Ok(self.0.store.session_metrics(id).await?)
    }

    /// Makes a session before its first run.
    ///
    /// # Errors
    /// [`DomainError::SessionExists`], whoever has it; [`DomainError::Invalid`] for values that are nested too deep.
    pub async fn create_session(&self, new: NewSession) -> Result<SessionRow, DomainError> {
        check_nesting([("session_state", Some(&new.state)), ("metadata", Some(&new.metadata)), ("summary", None)])?;
        let id = new.session_id.to_string();
        self.0.store.create(new).await?.ok_or(DomainError::SessionExists(id))
    }

    /// Changes a session. `principal` limits it to its own.
    ///
    /// # Errors
    /// [`DomainError::SessionNotFound`]; [`DomainError::Invalid`] for values that are nested too deep.
    pub async fn edit_session(
        &self,
        id: &SessionId,
        principal: Option<&Principal>,
        edit: SessionEdit,
    ) -> Result<SessionRow, DomainError> {
        let SessionEdit { name: _, state, metadata, summary } = &edit;
        check_nesting([
            ("session_state", state.as_ref()),
            ("metadata", metadata.as_ref()),
            ("summary", summary.as_ref()),
        ])?;
        let edited = self.0.store.edit(id, principal, edit, self.now_ms()).await?;
        edited.ok_or_else(|| DomainError::SessionNotFound(id.to_string()))
    }

    /// Removes those of the sessions that are there, the caller's and idle, with their workers and files; answers them.
    ///
    /// # Errors
    /// The record's. [`DomainError::SandboxStays`] when one of them has to stay; the others are gone.
    pub async fn delete_sessions(
        &self,
        ids: &[SessionId],
        principal: Option<&Principal>,
    ) -> Result<Vec<SessionId>, DomainError> {
        let mut own = Vec::new();
        for id in ids {
            match self.session(id, principal).await {
                Ok(session) => own.push((id.clone(), session.component)),
                Err(DomainError::SessionNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let cleared: Vec<_> = futures::stream::iter(own)
            .map(|(id, component)| async move { (self.clear(&id, component.as_ref()).await, id) })
            .buffered(REMOVED_AT_ONCE)
            .collect()
            .await;
        let (mut idle, mut stays) = (Vec::new(), None);
        for (cleared, id) in cleared {
            match cleared {
                Ok(true) => idle.push(id),
                Ok(false) => {}
                Err(error) => stays = stays.or(Some(error)),
            }
        }
        let removed = self.0.store.delete(&idle, principal).await?;
        stays.map_or(Ok(removed), Err)
    }

    /// Removes an idle session's sandbox, and with it its files: before the session, so that none is left without one,
    /// whatever happens in between, and nobody who takes the session's id gets them. False when one of its runs has not
    /// ended. One that comes just then finds an empty workspace, as after any loss.
    async fn clear(&self, id: &SessionId, component: Option<&ComponentRef>) -> Result<bool, DomainError> {
        // Without a component it has had no run, and so no sandbox.
        let Some(component) = component else { return Ok(true) };
        let open = RunFilter { session_id: Some(id.clone()), ends: Ends::NoneYet, limit: 1, ..RunFilter::default() };
        if self.0.store.list(open).await?.1 > 0 {
            return Ok(false);
        }
        match self.remove_worker(id, component).await {
            Ok(()) => Ok(true),
            Err(why) => {
                tracing::warn!(session_id = %id, error = %why, "a session stays: its sandbox can't be removed now");
                Err(DomainError::SandboxStays { session_id: id.clone(), why })
            }
        }
    }
}

fn check_nesting(objects: [(&str, Option<&Map<String, Value>>); 3]) -> Result<(), DomainError> {
    let deep = objects.into_iter().find(|(_, object)| object.is_some_and(|object| !nesting::fields_fit(object)));
    match deep {
        Some((name, _)) => {
            Err(DomainError::Invalid(format!("{name} is nested deeper than {} levels", nesting::MAX_LEVELS)))
        }
        None => Ok(()),
    }
}
