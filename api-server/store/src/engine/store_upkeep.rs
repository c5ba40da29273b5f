//! [`Upkeep`] on top of writers and readers.

use async_trait::async_trait;
use cadre_protocol::ids::SessionId;

use crate::engine::driver::Driver;
use crate::engine::store::SqlStore;
use crate::error::StoreError;
use crate::ops::{retention, usage, usage_read};
use crate::rows::upkeep::{DayUsage, Expiry, OldRun, RefreshState, UsageFilter};
use crate::traits::Upkeep;

#[async_trait]
impl<D: Driver> Upkeep for SqlStore<D> {
    async fn expire(&self, expiry: Expiry) -> Result<u64, StoreError> {
        self.writer(0)?.write(0, move |db| retention::expire(db, &expiry)).await
    }

    async fn old_runs(&self, before_ms: u64, limit: u32) -> Result<Vec<OldRun>, StoreError> {
        self.read(move |db| retention::old_runs(db, before_ms, limit)).await
    }

    async fn delete_run(&self, run: &OldRun, before_ms: u64) -> Result<bool, StoreError> {
        let OldRun { run_id, session_id } = run.clone();
        self.write(&run.session_id, move |db| retention::delete_run(db, &run_id, &session_id, before_ms)).await
    }

    async fn empty_sessions(&self, before_ms: u64, limit: u32) -> Result<Vec<SessionId>, StoreError> {
        self.read(move |db| retention::empty_sessions(db, before_ms, limit)).await
    }

    async fn count_usage(&self, to_ms: u64, at_ms: u64) -> Result<bool, StoreError> {
        // Counted beside the writer, which then only adds.
        let Some(counted) = self.read(move |db| usage::next_step(db, to_ms)).await? else { return Ok(false) };
        let is_last = counted.to_ms >= to_ms;
        let kept = self.writer(0)?.write(0, move |db| usage::keep(db, &counted, at_ms)).await?;
        Ok(!(kept && is_last))
    }

    async fn usage(&self, filter: UsageFilter, now_ms: u64) -> Result<Vec<DayUsage>, StoreError> {
        self.read(move |db| usage_read::days(db, &filter, now_ms)).await
    }

    async fn begin_refresh(&self, at_ms: u64, stale_before_ms: u64) -> Result<bool, StoreError> {
        self.writer(0)?.write(0, move |db| usage::begin_refresh(db, at_ms, stale_before_ms)).await
    }

    async fn end_refresh(&self, at_ms: u64, error: Option<String>) -> Result<(), StoreError> {
        self.writer(0)?.write(0, move |db| usage::end_refresh(db, at_ms, error.as_deref())).await
    }

    async fn refresh_state(&self) -> Result<RefreshState, StoreError> {
        self.read(usage::refresh_state).await
    }
}
