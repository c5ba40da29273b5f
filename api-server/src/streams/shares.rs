//! How many streams a namespace may hold open here: one that opens more and more takes no connection of another's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cadre_store::rows::EventChunk;
use futures::StreamExt as _;
use futures::stream::BoxStream;

/// Open streams, and requests that wait for a run's end, by namespace.
#[derive(Debug)]
pub struct StreamShares {
    most: u32,
    open: Mutex<HashMap<String, u32>>,
}

/// The namespace has as many as it may.
#[derive(Debug, thiserror::Error)]
#[error("too many streams of namespace {0} are open; try again later")]
pub struct StreamsFull(String);

/// A stream that is open, or a request that waits.
#[derive(Debug)]
pub struct StreamSeat {
    shares: Arc<StreamShares>,
    namespace: String,
}

impl StreamShares {
    /// At most so many of each namespace; 0 means no limit.
    #[must_use]
    pub fn new(most: u32) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Counts one more, until the seat is dropped.
    ///
    /// # Errors
    /// When the namespace has as many as it may.
    pub fn enter(self: &Arc<Self>, namespace: &str) -> Result<StreamSeat, StreamsFull> {
        let mut open = self.open();
        match open.get_mut(namespace) {
            Some(count) if self.most > 0 && *count >= self.most => return Err(StreamsFull(namespace.to_owned())),
            Some(count) => *count += 1,
            None => drop(open.insert(namespace.to_owned(), 1)),
        }
        Ok(StreamSeat { shares: Arc::clone(self), namespace: namespace.to_owned() })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamSeat {
    fn drop(&mut self) {
        let mut open = self.shares.open();
        if let Some(count) = open.get_mut(&self.namespace) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.namespace);
            }
        }
    }
}

/// A stream that keeps its seat as long as it is there.
#[must_use]
pub fn seated(chunks: BoxStream<'static, EventChunk>, seat: StreamSeat) -> BoxStream<'static, EventChunk> {
    chunks
        .map(move |chunk| {
            let _ = &seat;
            chunk
        })
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_so_many_and_another_its_own() {
        let shares = StreamShares::new(2);
        let (one, _two) = (shares.enter("busy").unwrap(), shares.enter("busy").unwrap());
        assert!(shares.enter("busy").unwrap_err().to_string().contains("namespace busy"));
        let _other = shares.enter("calm").unwrap();
        let stream = seated(futures::stream::empty().boxed(), one);
        assert!(shares.enter("busy").is_err(), "the stream has the seat");
        drop(stream);
        drop(shares.enter("busy").unwrap());
        let none = StreamShares::new(0);
        let many: Vec<_> = (0..10_000).map(|_| none.enter("busy").unwrap()).collect();
        drop(many);
        assert!(none.open().is_empty());
    }
}
