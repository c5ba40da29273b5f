//! Joins small chunks of journals in the background, one run at a time, after their runs have ended.
//!
//! Asked for when a long run ends, and when one is read that was not joined: the process may have been killed before.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use cadre_protocol::ids::RunId;
use tokio::sync::Semaphore;

use crate::engine::driver::Driver;
use crate::engine::store::{self, SqlStore};
use crate::error::StoreError;
use crate::ops::merge;

/// Entries from which on a journal may be of many chunks.
const MIN_ENTRIES: u64 = 64;
/// Chunks read at once from which on it is.
const MIN_CHUNKS: usize = 32;
/// Most runs that wait; one that finds no place is joined when it is read.
const MAX_WAITING: usize = 256;

/// Whose turn it is.
#[derive(Clone)]
pub struct Merger {
    waiting: Arc<Mutex<HashSet<RunId>>>,
    turn: Arc<Semaphore>,
}

impl Default for Merger {
    fn default() -> Self {
        Self { waiting: Arc::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Merger {
    /// Takes a place. False: the run has one, or there is none.
    fn enter(&self, run_id: &RunId) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.len() < MAX_WAITING && waiting.insert(run_id.clone())
    }

    fn leave(&self, run_id: &RunId) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(run_id);
    }
}

impl<D: Driver> SqlStore<D> {
    /// A run has ended with so many entries.
    pub(crate) fn merge_ended(&self, run_id: &RunId, entries: u64) {
        if entries >= MIN_ENTRIES {
            self.merge_soon(run_id);
        }
    }

    /// So many chunks of a run were read at once.
    pub(crate) fn merge_read(&self, run_id: &RunId, chunks: usize) {
        if chunks >= MIN_CHUNKS {
            self.merge_soon(run_id);
        }
    }

    fn merge_soon(&self, run_id: &RunId) {
        if !self.merger.enter(run_id) {
            return;
        }
        let (store, run_id) = (self.clone(), run_id.clone());
        tokio::spawn(async move {
            if let Ok(_turn) = store.merger.turn.acquire().await
                && let Err(error) = store.merge(&run_id).await
            {
                tracing::debug!(%run_id, category = error.category(), "chunks can't be joined now");
            }
            store.merger.leave(&run_id);
        });
    }

    async fn merge(&self, run_id: &RunId) -> Result<(), StoreError> {
        let wanted = run_id.clone();
        let Some((session_id, spans)) = self.read(move |db| merge::plan(db, &wanted)).await? else { return Ok(()) };
        let order = store::order(&session_id);
        for span in spans {
            let run_id = run_id.clone();
            self.writer(order)?.write(order, move |db| merge::join(db, &run_id, span)).await?;
        }
        Ok(())
    }
}
