//! [`Jobs`] on top of writers and readers.

use std::sync::Arc;

use async_trait::async_trait;
use cadre_protocol::ids::RunId;

use crate::engine::driver::Driver;
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::ops::jobs;
use crate::rows::jobs::{JobFilter, JobRow};
use crate::traits::Jobs;

#[async_trait]
impl<D: Driver> Jobs for SqlStore<D> {
    async fn jobs(&self, filter: JobFilter) -> Result<(Vec<JobRow>, u64), StoreError> {
        let snapshots = Arc::clone(&self.snapshots);
        self.read(move |db| jobs::jobs(db, &snapshots, &filter)).await
    }

    async fn job(&self, run_id: &RunId) -> Result<Option<JobRow>, StoreError> {
        let (snapshots, run_id) = (Arc::clone(&self.snapshots), run_id.clone());
        self.read(move |db| jobs::job(db, &snapshots, &run_id)).await
    }
}
