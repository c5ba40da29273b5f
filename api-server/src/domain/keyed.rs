//! Idempotency keys: the same key and wish, the same run, whatever has become of its agent and of the room there is.

use cadre_protocol::run::RunStatus;
use cadre_store::branches::{KeyOf, Keyed};
use cadre_store::rows::{Origin, RunRow};

use super::continuing::{Continue, Continued};
use super::{DomainError, Service, Submit, Submitted};

/// The wish's key, with whose it is: the run that it makes belongs to whom the old one belongs.
pub(super) fn key_of(run: &RunRow, wish: &Continue) -> Option<KeyOf> {
    Some(KeyOf {
        key: wish.idempotency.clone()?,
        principal: run.principal.clone(),
        user_id: wish.user_id.clone().or_else(|| run.user_id.clone()),
        component: run.component.clone(),
        origin: Origin::Http,
    })
}

impl Service {
    /// The run that was accepted with the key of a request before.
    ///
    /// # Errors
    /// [`DomainError::IdempotencyConflict`].
    pub async fn accepted_before(&self, submit: &Submit) -> Result<Option<Submitted>, DomainError> {
        let Some(key) = submit.idempotency.clone() else { return Ok(None) };
        let Submit { principal, user_id, component, origin, .. } = submit;
        let of = KeyOf {
            key,
            principal: principal.clone(),
            user_id: user_id.clone(),
            component: component.clone(),
            origin: origin.clone(),
        };
        Ok(self.keyed(Some(of)).await?.map(|continued| continued.submitted))
    }

    /// The run that has come of a wish with its key before.
    ///
    /// # Errors
    /// [`DomainError::IdempotencyConflict`].
    pub async fn continued_before(&self, run: &RunRow, wish: &Continue) -> Result<Option<Submitted>, DomainError> {
        Ok(self.keyed(key_of(run, wish)).await?.map(|continued| continued.submitted))
    }

    /// The run that a key names already. It is looked up first: the run that was gone on from may not be fit for it any more.
    pub(super) async fn keyed(&self, key: Option<KeyOf>) -> Result<Option<Continued>, DomainError> {
        let Some(key) = key else { return Ok(None) };
        match self.0.store.keyed(key).await? {
            None => Ok(None),
            Some(Keyed::Run(run)) => self.replayed(*run).await.map(Some),
            Some(Keyed::Conflict) => Err(DomainError::IdempotencyConflict),
        }
    }

    /// A run that was made before. Its stream has all of its events, as nobody knows which of them the caller has.
    pub(super) async fn replayed(&self, run: RunRow) -> Result<Continued, DomainError> {
        let waiting_on = match run.status {
            RunStatus::Pending => self.0.store.waiting_on(&run.run_id).await?,
            _ => None,
        };
        Ok(Continued { submitted: Submitted { run, replayed: true, waiting_on }, after: None })
    }
}
