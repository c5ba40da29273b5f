//! Idempotency keys of wishes to go on from a run: the same key and wish, the same run.

use cadre_store::branches::{KeyOf, Keyed};
use cadre_store::rows::RunRow;

use super::continuing::{Continue, Continued};
use super::{DomainError, Service, Submitted};

/// The wish's key, with whose it is: the run that it makes belongs to whom the old one belongs.
pub(super) fn key_of(run: &RunRow, wish: &Continue) -> Option<KeyOf> {
    Some(KeyOf {
        key: wish.idempotency.clone()?,
        principal: run.principal.clone(),
        user_id: wish.user_id.clone().or_else(|| run.user_id.clone()),
        component: run.component.clone(),
    })
}

impl Service {
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
        let waiting_on = self.0.store.waiting_on(&run.run_id).await?;
        Ok(Continued { submitted: Submitted { run, replayed: true, waiting_on }, after: None })
    }
}
