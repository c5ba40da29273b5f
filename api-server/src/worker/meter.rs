//! Keeps one model call of a worker within its budgets.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use cadre_gateway::{Bound, Meter, ModelConfig};
use cadre_protocol::model::ModelError;

use crate::domain::budget::{self, Held};
use crate::domain::{RunScope, Service};

/// The meter of a call.
pub struct CallMeter<'a> {
    service: &'a Service,
    scope: &'a RunScope,
    model: &'a ModelConfig,
    held: Mutex<Option<Held>>,
}

impl<'a> CallMeter<'a> {
    /// None where no budget applies: then a call costs nothing more.
    #[must_use]
    pub fn of(service: &'a Service, scope: &'a RunScope, model: &'a ModelConfig) -> Option<Self> {
        budget::applies(scope, model).then(|| Self { service, scope, model, held: Mutex::default() })
    }

    /// What the last attempt holds.
    pub fn take(&self) -> Option<Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn keep(&self, held: Held) {
        // What an earlier attempt still holds is not known to be unspent: it stays reserved.
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
    }
}

#[async_trait]
impl Meter for CallMeter<'_> {
    async fn reserve(&self, bound: &Bound) -> Result<u64, ModelError> {
        let (held, output_tokens) = self.service.hold(self.scope, self.model, bound).await?;
        self.keep(held);
        Ok(output_tokens)
    }

    async fn release(&self) {
        if let Some(held) = self.take() {
            self.service.release_hold(self.scope, held).await;
        }
    }
}
