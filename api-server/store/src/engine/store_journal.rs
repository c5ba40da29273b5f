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
            Ok(batch) => {
                let outcome = self.write(&context.session_id, move |db| append::append(db, &batch)).await?;
                if let AppendOutcome::Appended { next_index, ended: Some(_), chunk: _ } = &outcome {
                    self.merge_ended(&context.run_id, *next_index);
                }
                Ok(outcome)
            }
            Err(limit) => Ok(AppendOutcome::LimitExceeded(limit)),
        }
    }

    async fn events(
        &self,
        run_id: &RunId,
        after: Option<u64>,
        max_bytes: usize,
    ) -> Result<Option<EventChunk>, StoreError> {
        let wanted = run_id.clone();
        let (page, chunks) = self.read(move |db| queries::events(db, &wanted, after, max_bytes)).await?;
        self.merge_read(run_id, chunks);
        Ok(page)
    }

    async fn model_call(&self, call: ModelCallRow) -> Result<(), StoreError> {
        let order = self.order_of(&call.run_id).await?;
        self.writer(order)?.write_lazily(order, move |db| models::insert(db, &call)).await
    }
}
