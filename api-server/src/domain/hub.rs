//! Fan-out of live events to those who wait for them. Nobody here is ever waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cadre_protocol::ids::RunId;
use cadre_store::rows::{EventChunk, RunDetail};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

/// Chunks that a slow reader may be behind before it reads from the record instead.
const BUFFERED_CHUNKS: usize = 128;

struct Topic {
    /// None as long as nobody wants events.
    chunks: Option<broadcast::Sender<EventChunk>>,
    ended: watch::Sender<Option<u64>>,
    news: watch::Sender<()>,
    listeners: usize,
    /// Listeners that want events as soon as they are there.
    readers: usize,
    /// What the run was when it ended here, for the first who asks.
    seen: Option<Box<RunDetail>>,
}

/// Runs that somebody listens to.
#[derive(Clone, Default)]
pub struct Hub(Arc<Mutex<HashMap<RunId, Topic>>>);

/// What a listener is after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// Every event, at once.
    Events,
    /// The end.
    End,
}

/// Somebody who listens. Forgets the run when the last one is dropped.
pub struct Listener {
    hub: Hub,
    run_id: RunId,
    wants: Wants,
    /// Live chunks, for who wants them.
    pub chunks: Option<broadcast::Receiver<EventChunk>>,
    /// Changes when the run has ended and its last chunk was sent, to the number after its last entry where that is known.
    /// It may go on later: whoever begins to listen asks the record whether it has ended before.
    pub ended: watch::Receiver<Option<u64>>,
    /// Changes when another server may have written to the run: the record says what.
    pub news: watch::Receiver<()>,
}

impl Hub {
    /// Listens from now on.
    #[must_use]
    pub fn listen(&self, run_id: &RunId, wants: Wants) -> Listener {
        let mut topics = self.lock();
        let topic = topics.entry(run_id.clone()).or_insert_with(|| Topic {
            chunks: None,
            ended: watch::Sender::new(None),
            news: watch::Sender::new(()),
            listeners: 0,
            readers: 0,
            seen: None,
        });
        topic.listeners += 1;
        topic.readers += usize::from(wants == Wants::Events);
        let sender = || broadcast::Sender::new(BUFFERED_CHUNKS);
        let chunks = (wants == Wants::Events).then(|| topic.chunks.get_or_insert_with(sender).subscribe());
        let (ended, news) = (topic.ended.subscribe(), topic.news.subscribe());
        Listener { hub: self.clone(), run_id: run_id.clone(), wants, chunks, ended, news }
    }

    /// Whether somebody listens, and whether for events.
    #[must_use]
    pub fn audience(&self, run_id: &RunId) -> Option<Wants> {
        let topics = self.lock();
        let topic = topics.get(run_id)?;
        Some(if topic.readers > 0 { Wants::Events } else { Wants::End })
    }

    /// Tells of durable events.
    pub fn publish(&self, run_id: &RunId, chunk: EventChunk) {
        if let Some(chunks) = self.lock().get(run_id).and_then(|topic| topic.chunks.as_ref()) {
            // Nobody may want events any more.
            let _ = chunks.send(chunk);
        }
    }

    /// Tells of the end, after the last chunk.
    pub fn end(&self, run_id: &RunId, next_index: Option<u64>, seen: Option<Box<RunDetail>>) {
        if let Some(topic) = self.lock().get_mut(run_id) {
            topic.seen = seen;
            topic.ended.send_replace(next_index);
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
        self.lock().values().map(|topic| topic.listeners).sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, Topic>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next live chunk. Waits for ever where none are wanted.
///
/// # Errors
/// As the channel's.
pub async fn next_chunk(chunks: &mut Option<broadcast::Receiver<EventChunk>>) -> Result<EventChunk, RecvError> {
    match chunks {
        Some(chunks) => chunks.recv().await,
        None => std::future::pending().await,
    }
}

impl Listener {
    /// What the run was when it ended here. None: the record knows.
    #[must_use]
    pub fn take_seen(&self) -> Option<Box<RunDetail>> {
        self.hub.lock().get_mut(&self.run_id)?.seen.take()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut topics = self.hub.lock();
        if let Some(topic) = topics.get_mut(&self.run_id) {
            topic.readers -= usize::from(self.wants == Wants::Events);
            topic.listeners -= 1;
            if topic.listeners == 0 {
                topics.remove(&self.run_id);
            }
        }
    }
}
