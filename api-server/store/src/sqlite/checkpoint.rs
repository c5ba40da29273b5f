//! Keeps the write-ahead log short.
//!
//! SQLite's own checkpoint would make one commit in a thousand pages wait for milliseconds. So the bulk is copied by a
//! thread of its own, beside the writer; a short one on the writer then catches up, after which the log begins anew.
//! Without that second step a busy log would never be empty and grow without bound.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection as Sqlite3;
use rusqlite::hooks::Wal;

use crate::error::StoreError;

/// Pages of the log at which the thread begins: 4 MiB.
const SOFT_PAGES: u32 = 1_024;
/// Pages at which the writer empties the log itself, also when the thread gets no time to: 32 MiB.
const HARD_PAGES: u32 = 8_192;
/// How long it then waits.
const HARD_WAIT: Duration = Duration::from_millis(100);

const IDLE: u8 = 0;
const COPYING: u8 = 1;
const COPIED: u8 = 2;

thread_local! {
    /// Pages of the log after this writer thread's last commit.
    static LOG_PAGES: Cell<u32> = const { Cell::new(0) };
}

/// Counts the log's pages instead of SQLite's automatic checkpoint.
pub fn watch(writer: &Sqlite3) {
    writer.wal_hook(Some(|_: &Wal, pages| {
        LOG_PAGES.set(u32::try_from(pages).unwrap_or_default());
        Ok(())
    }));
}

/// The thread.
pub struct Checkpointer {
    state: Arc<AtomicU8>,
    requests: Mutex<SyncSender<()>>,
}

impl Checkpointer {
    /// Starts the thread; it ends with this value.
    pub fn start(path: PathBuf) -> Result<Self, StoreError> {
        let (requests, queue) = sync_channel(1);
        let state = Arc::new(AtomicU8::new(IDLE));
        let shared = Arc::clone(&state);
        std::thread::Builder::new()
            .name("store-checkpoint".into())
            .spawn(move || copy_when_asked(&path, &queue, &shared))
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Self { state, requests: Mutex::new(requests) })
    }

    /// Called by the writer between commits.
    pub fn after_commit(&self, writer: &Sqlite3) {
        let pages = LOG_PAGES.get();
        match self.state.load(Ordering::Acquire) {
            COPIED => {
                checkpoint(writer, "passive");
                self.state.store(IDLE, Ordering::Release);
            }
            IDLE | COPYING if pages >= HARD_PAGES => self.empty(writer),
            IDLE if pages >= SOFT_PAGES => {
                self.state.store(COPYING, Ordering::Release);
                let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
                if requests.try_send(()).is_err() {
                    self.state.store(IDLE, Ordering::Release);
                }
            }
            _ => {}
        }
    }

    /// Waits a moment for readers of the log's old pages.
    fn empty(&self, writer: &Sqlite3) {
        let usual: i64 = writer.pragma_query_value(None, "busy_timeout", |row| row.get(0)).unwrap_or(5_000);
        let limited = writer.busy_timeout(HARD_WAIT);
        checkpoint(writer, "restart");
        let usual = Duration::from_millis(u64::try_from(usual).unwrap_or_default());
        if let Err(error) = limited.and_then(|()| writer.busy_timeout(usual)) {
            tracing::warn!(%error, "the busy time-out could not be set");
        }
    }
}

fn copy_when_asked(path: &std::path::Path, queue: &Receiver<()>, state: &AtomicU8) {
    let mut connection: Option<Sqlite3> = None;
    while queue.recv().is_ok() {
        if connection.is_none() {
            connection = Sqlite3::open(path)
                .inspect_err(|error| tracing::warn!(%error, "no connection for the checkpoint"))
                .ok();
        }
        if let Some(connection) = &connection {
            checkpoint(connection, "passive");
        }
        state.store(COPIED, Ordering::Release);
    }
}

/// Copies pages of the log into the file. Failures leave them in the log: they are safe there.
fn checkpoint(connection: &Sqlite3, mode: &str) {
    let done = connection.query_row(&format!("pragma wal_checkpoint({mode})"), [], |row| row.get::<_, i64>(0));
    if let Err(error) = done {
        tracing::warn!(%error, mode, "a checkpoint has failed");
    }
}
