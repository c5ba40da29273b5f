//! [`Budgets`] on top of writers.

use async_trait::async_trait;
use cadre_protocol::ids::RunId;

use crate::budgets::{Budgets, CallBound, ModelBudget, Reserved, RunBudget};
use crate::db::Db;
use crate::engine::driver::Driver;
use crate::engine::store::{self, SqlStore};
use crate::error::StoreError;
use crate::ops::budgets;
use crate::rows::ModelCallRow;

#[async_trait]
impl<D: Driver> Budgets for SqlStore<D> {
    async fn reserve_in_run(
        &self,
        run_id: &RunId,
        call_id: &str,
        budget: RunBudget,
        bound: CallBound,
    ) -> Result<Reserved, StoreError> {
        let order = self.order_of(run_id).await?;
        let (run_id, call_id) = (run_id.clone(), call_id.to_owned());
        let op = move |db: &mut dyn Db| budgets::reserve_in_run(db, &run_id, &call_id, budget, bound);
        self.writer(order)?.write(order, op).await
    }

    async fn release_in_run(&self, run_id: &RunId, call_id: &str) -> Result<(), StoreError> {
        let order = self.order_of(run_id).await?;
        let (run_id, call_id) = (run_id.clone(), call_id.to_owned());
        self.writer(order)?.write(order, move |db| budgets::release_in_run(db, &run_id, &call_id)).await
    }

    async fn settle_in_run(&self, call: ModelCallRow, call_id: &str) -> Result<(), StoreError> {
        let order = self.order_of(&call.run_id).await?;
        let call_id = call_id.to_owned();
        self.writer(order)?.write_lazily(order, move |db| budgets::settle_in_run(db, &call, &call_id)).await
    }

    async fn reserve_in_model(&self, budget: &ModelBudget, bound: CallBound) -> Result<Reserved, StoreError> {
        let (order, budget) = (store::order_of_text(&budgets::name(budget)), budget.clone());
        self.writer(order)?.write(order, move |db| budgets::reserve_in_model(db, &budget, bound)).await
    }

    async fn settle_in_model(&self, budget: &ModelBudget, reserved: u64, spent: u64) -> Result<(), StoreError> {
        let (order, budget) = (store::order_of_text(&budgets::name(budget)), budget.clone());
        let op = move |db: &mut dyn Db| budgets::settle_in_model(db, &budget, reserved, spent);
        self.writer(order)?.write_lazily(order, op).await
    }
}
