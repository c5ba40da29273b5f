//! Sessions: making, finding, changing and ending them, with all that belongs to them.

use std::time::Duration;

use cadre_protocol::ids::SessionId;
use cadre_protocol::nesting;
use cadre_protocol::run::RunMetrics;
use cadre_store::rows::sessions::{NewSession, RunPage, SessionEdit, SessionFilter, SessionRuns};
use cadre_store::rows::{Principal, RunDetail, SessionRow};
use serde_json::{Map, Value};

use super::{DomainError, Service};

impl Service {
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
        self.session(id, principal).await?;
        let edited = self.0.store.edit(id, edit, self.now_ms()).await?;
        edited.ok_or_else(|| DomainError::SessionNotFound(id.to_string()))
    }

    /// Removes those of the sessions that are there, the caller's and idle, with their workers; answers them.
    ///
    /// # Errors
    /// The record's.
    pub async fn delete_sessions(
        &self,
        ids: &[SessionId],
        principal: Option<&Principal>,
    ) -> Result<Vec<SessionId>, DomainError> {
        let (mut own, mut components) = (Vec::new(), Vec::new());
        for id in ids {
            match self.session(id, principal).await {
                Ok(session) => {
                    own.push(id.clone());
                    components.push(session.component);
                }
                Err(DomainError::SessionNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let removed = self.0.store.delete(&own).await?;
        for (id, component) in own.iter().zip(&components).filter(|(id, _)| removed.contains(id)) {
            // Without a component it has had no run, and so no worker.
            let idle = component.as_ref().and_then(|component| self.board().rest(id, component));
            if let Some(idle) = idle {
                let _ = self.0.idle.send((Duration::ZERO, idle));
            }
        }
        Ok(removed)
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
