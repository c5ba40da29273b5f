//! A copy of a session, so that a conversation can take two ways.

use cadre_protocol::ids::{ComponentRef, SessionId};
use cadre_store::branches::{SessionFork, SessionForkOutcome};
use cadre_store::rows::Principal;

use super::{DomainError, Service};

impl Service {
    /// Copies a session of a component; answers the copy's id. `principal` limits it to its own; the copy belongs to whom
    /// the source belongs.
    ///
    /// # Errors
    /// [`DomainError::SessionNotFound`]; [`DomainError::BadRequest`] when no run of it has ended;
    /// [`DomainError::TooLarge`]; [`DomainError::NamespaceFilesFull`].
    pub async fn fork_session(
        &self,
        source: &SessionId,
        component: &ComponentRef,
        principal: Option<&Principal>,
        user_id: Option<String>,
    ) -> Result<SessionId, DomainError> {
        let session = self.session(source, principal).await?;
        if session.component.as_ref() != Some(component) {
            return Err(DomainError::SessionNotFound(source.to_string()));
        }
        let fork = SessionFork {
            source: source.clone(),
            principal: principal.cloned(),
            session_id: SessionId::generate(),
            run_prefix: uuid::Uuid::now_v7().to_string(),
            user_id,
            max_namespace_bytes: self.0.limits.shares.max_file_bytes,
            at_ms: self.now_ms(),
        };
        let session_id = fork.session_id.clone();
        match self.0.store.fork_session(fork).await? {
            SessionForkOutcome::Forked { .. } => Ok(session_id),
            SessionForkOutcome::Empty => Err(DomainError::BadRequest("Source session has no runs to fork".to_owned())),
            SessionForkOutcome::NamespaceFull => Err(DomainError::NamespaceFilesFull(component.namespace.clone())),
            SessionForkOutcome::TooLarge => Err(DomainError::TooLarge(format!(
                "a session with more than {} runs or {} MiB can't be forked",
                SessionFork::MAX_RUNS,
                SessionFork::MAX_BYTES >> 20
            ))),
        }
    }
}
