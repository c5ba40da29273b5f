//! [`Approvals`] on top of writers and readers.

use std::sync::Arc;

use async_trait::async_trait;
use cadre_protocol::ids::RunId;

use crate::approvals::{ApprovalRow, Approvals, Consumption, DecideOutcome, Decisions};
use crate::engine::driver::Driver;
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::ops::pause;

#[async_trait]
impl<D: Driver> Approvals for SqlStore<D> {
    async fn approvals(&self, run_id: &RunId) -> Result<Vec<ApprovalRow>, StoreError> {
        let run_id = run_id.clone();
        self.read(move |db| pause::of_run(db, &run_id)).await
    }

    async fn decide(&self, decisions: Decisions) -> Result<DecideOutcome, StoreError> {
        let order = self.order_of(&decisions.run_id).await?;
        let snapshots = Arc::clone(&self.snapshots);
        self.writer(order)?.write(order, move |db| pause::decide(db, &snapshots, &decisions)).await
    }

    async fn consume(&self, wanted: Consumption) -> Result<bool, StoreError> {
        let order = self.order_of(&wanted.run_id).await?;
        self.writer(order)?.write(order, move |db| pause::consume(db, &wanted)).await
    }
}
