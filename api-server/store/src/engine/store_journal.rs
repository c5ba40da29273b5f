//! [`Journal`] on top of writers and readers.

use async_trait::async_trait;
use cadre_protocol::event::EventContext;
use cadre_protocol::ids::RunId;
use cadre_protocol::journal::Batch;

use crate::engine::driver::Driver;
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::ops::{append, entries, models, queries};
use crate::rows::{AppendOutcome, EventChunk, ModelCallRow};
use crate::traits::Journal;

#[async_trait]
impl<D: Driver> Journal for SqlStore<D> {
    async fn append(&self, context: &EventContext, batch: &Batch) -> Result<AppendOutcome, StoreError> {
        // Rendered here, on the caller's thread, so that the writer only writes.
        match entries::prepare(context, batch)? {
            Ok(batch) => self.write(&context.session_id, move |db| append::append(db, &batch)).await,
            Err(limit) => Ok(AppendOutcome::LimitExceeded(limit)),
        }
    }

    async fn events(
        &self,
        run_id: &RunId,
        after: Option<u64>,
        max_bytes: usize,
    ) -> Result<Vec<EventChunk>, StoreError> {
        let run_id = run_id.clone();
        self.read(move |db| queries::events(db, &run_id, after, max_bytes)).await
    }

    async fn model_call(&self, call: ModelCallRow) -> Result<(), StoreError> {
        let order = self.order_of(&call.run_id).await?;
        self.writer(order)?.write_lazily(order, move |db| models::insert(db, &call)).await
    }
}
