//! Fan-out of live events to those who wait for them. Nobody here is ever waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cadre_protocol::ids::RunId;
use cadre_store::rows::EventChunk;
use tokio::sync::{broadcast, watch};

/// Chunks that a slow reader may be behind before it reads from the record instead.
const BUFFERED_CHUNKS: usize = 128;

struct Topic {
    chunks: broadcast::Sender<EventChunk>,
    ended: watch::Sender<()>,
    news: watch::Sender<()>,
    readers: usize,
}

/// Runs that somebody listens to.
#[derive(Clone, Default)]
pub struct Hub(Arc<Mutex<HashMap<RunId, Topic>>>);

/// Somebody who listens. Forgets the run when the last one is dropped.
pub struct Listener {
    hub: Hub,
    run_id: RunId,
    /// Live chunks.
    pub chunks: broadcast::Receiver<EventChunk>,
    /// Changes when the run has ended and its last chunk was sent. It may go on later: whoever begins to listen asks the
    /// record whether it has ended before.
    pub ended: watch::Receiver<()>,
    /// Changes when another server may have written to the run: the record says what.
    pub news: watch::Receiver<()>,
}

impl Hub {
    /// Listens from now on.
    #[must_use]
    pub fn listen(&self, run_id: &RunId) -> Listener {
        let mut topics = self.lock();
        let topic = topics.entry(run_id.clone()).or_insert_with(|| Topic {
            chunks: broadcast::Sender::new(BUFFERED_CHUNKS),
            ended: watch::Sender::new(()),
            news: watch::Sender::new(()),
            readers: 0,
        });
        topic.readers += 1;
        let (chunks, ended, news) = (topic.chunks.subscribe(), topic.ended.subscribe(), topic.news.subscribe());
        Listener { hub: self.clone(), run_id: run_id.clone(), chunks, ended, news }
    }

    /// Tells of durable events.
    pub fn publish(&self, run_id: &RunId, chunk: EventChunk) {
        if let Some(topic) = self.lock().get(run_id) {
            let _ = topic.chunks.send(chunk);
        }
    }

    /// Tells of the end, after the last chunk.
    pub fn end(&self, run_id: &RunId) {
        if let Some(topic) = self.lock().get(run_id) {
            topic.ended.send_replace(());
        }
    }

    /// Tells that another server has written to the run.
    pub fn wake(&self, run_id: &RunId) {
        if let Some(topic) = self.lock().get(run_id) {
            topic.news.send_replace(());
        }
    }

    /// Tells that other servers may have written to any run.
    pub fn wake_all(&self) {
        for topic in self.lock().values() {
            topic.news.send_replace(());
        }
    }

    /// Number of listeners.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.lock().values().map(|topic| topic.readers).sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Topic>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut topics = self.hub.lock();
        if let Some(topic) = topics.get_mut(&self.run_id) {
            topic.readers -= 1;
            if topic.readers == 0 {
                topics.remove(&self.run_id);
            }
        }
    }
}
