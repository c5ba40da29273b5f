//! A run's events for one reader: stored ones, then live ones, without a gap or a duplicate.

use std::time::Duration;

use cadre_protocol::ids::RunId;
use cadre_store::rows::{EventChunk, RunRow};
use futures::stream::BoxStream;
use tokio::sync::broadcast::error::RecvError;

use super::Service;
use super::hub::{self, Listener, Wants};

/// Most bytes that are read from the record at a time.
const READ_BYTES: usize = 256 << 10;
/// Pause before a read that failed is tried again.
const READ_AGAIN: Duration = Duration::from_millis(500);

/// Longest silence before the record is asked.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The server stops.
struct Stopping;

/// What is known of a run before anything is read.
enum Known {
    Nothing,
    /// How it stood when its row was read.
    Row {
        entries: u64,
        ended: bool,
    },
    /// That it had not begun when this began to listen.
    Start(Listener),
}

enum Live {
    Chunk(EventChunk),
    /// Something was missed: the record has it.
    Behind,
    /// Ended, with the number after the last entry where that is known.
    Ended(Option<u64>),
    Stopping,
}

impl Service {
    /// The run's events after number `after`, stored ones and then live ones, until its end or its next pause.
    /// Callers check with [`Self::run`] first that it is there and theirs. A slow reader delays nobody.
    #[must_use]
    pub fn stream(&self, run_id: &RunId, after: Option<u64>) -> BoxStream<'static, EventChunk> {
        self.follow(run_id, after, Known::Nothing)
    }

    /// The events of a run that somebody has listened to since before it was accepted.
    #[must_use]
    pub fn stream_from_start(&self, run_id: &RunId, listener: Listener) -> BoxStream<'static, EventChunk> {
        self.follow(run_id, None, Known::Start(listener))
    }

    /// The same as [`Self::stream`] of a run that was just looked at: the record is not asked again how it stands.
    #[must_use]
    pub fn stream_of(&self, run: &RunRow, after: Option<u64>) -> BoxStream<'static, EventChunk> {
        let (entries, ended) = (run.next_index, run.status.is_at_rest());
        self.follow(&run.run_id, after, Known::Row { entries, ended })
    }

    fn follow(&self, run_id: &RunId, after: Option<u64>, known: Known) -> BoxStream<'static, EventChunk> {
        let (service, run_id) = (self.clone(), run_id.clone());
        Box::pin(async_stream::stream! {
            // Listening starts before the first read, so that nothing falls between the two.
            let listen = || service.0.hub.listen(&run_id, Wants::Events);
            let (mut complete, mut end, mut open_at) = (false, None, None);
            let mut listener = match known {
                Known::Start(listener) => {
                    // Nothing can have been missed by whoever listened before there was anything.
                    complete = true;
                    listener
                }
                Known::Row { entries, ended } => {
                    (end, open_at) = if ended { (Some(entries), None) } else { (None, Some(entries)) };
                    listen()
                }
                Known::Nothing => {
                    let listener = listen();
                    end = service.end(&run_id).await;
                    listener
                }
            };
            let mut next = after.map_or(0, |index| index.saturating_add(1));
            'record: loop {
                while !std::mem::take(&mut complete) && end.is_none_or(|end| next < end) {
                    let Ok(stored) = service.read(&run_id, next).await else { return };
                    let Some(stored) = stored else { break };
                    if let Some(chunk) = advance(&mut next, stored) {
                        yield chunk;
                    }
                }
                if end.is_some() {
                    return;
                }
                // An end is an entry: without a new one, the run goes on as it was seen.
                if open_at.take().is_some_and(|entries| next > entries) {
                    end = service.end(&run_id).await;
                    continue 'record;
                }
                loop {
                    match service.live(&mut listener).await {
                        Live::Chunk(chunk) if chunk.first_index > next => continue 'record,
                        Live::Chunk(chunk) => {
                            if let Some(chunk) = advance(&mut next, chunk) {
                                yield chunk;
                            }
                        }
                        Live::Behind => {
                            end = service.end(&run_id).await;
                            continue 'record;
                        }
                        Live::Ended(at) => {
                            end = Some(at.unwrap_or(u64::MAX));
                            continue 'record;
                        }
                        Live::Stopping => return,
                    }
                }
            }
        })
    }

    /// Waits for what comes next.
    async fn live(&self, listener: &mut Listener) -> Live {
        tokio::select! {
            biased;
            received = hub::next_chunk(&mut listener.chunks) => match received {
                Ok(chunk) => Live::Chunk(chunk),
                Err(RecvError::Lagged(_)) => Live::Behind,
                Err(RecvError::Closed) => Live::Ended(None),
            },
            _ = listener.ended.changed() => Live::Ended(*listener.ended.borrow_and_update()),
            () = self.0.stopping.cancelled() => Live::Stopping,
            Ok(()) = listener.news.changed() => Live::Behind,
            // News of other servers may be lost.
            () = tokio::time::sleep(LOOK_AGAIN) => Live::Behind,
        }
    }

    /// Stored events from number `next` on; none when there are none. An error when the server stops before the record
    /// answers.
    async fn read(&self, run_id: &RunId, next: u64) -> Result<Option<EventChunk>, Stopping> {
        loop {
            match self.0.store.events(run_id, next.checked_sub(1), READ_BYTES).await {
                Ok(chunk) => return Ok(chunk),
                Err(error) => tracing::warn!(run_id = %run_id, category = error.category(), "events can't be read now"),
            }
            tokio::select! {
                () = tokio::time::sleep(READ_AGAIN) => {}
                () = self.0.stopping.cancelled() => return Err(Stopping),
            }
        }
    }

    /// Where the events of a run that has ended end; none while it goes on.
    async fn end(&self, run_id: &RunId) -> Option<u64> {
        match self.0.store.run(run_id).await {
            Ok(Some(run)) => run.status.is_at_rest().then_some(run.next_index),
            Ok(None) => Some(0),
            // Unknown: the end will be told by the hub, or by the next reader's look.
            Err(_) => None,
        }
    }
}

/// What of a chunk is new at `next`, which moves behind it.
fn advance(next: &mut u64, chunk: EventChunk) -> Option<EventChunk> {
    if chunk.next_index <= *next {
        return None;
    }
    let fresh = trim(chunk, *next);
    *next = fresh.next_index;
    (!fresh.frames.is_empty()).then_some(fresh)
}

/// The chunk without its events before `from`.
fn trim(chunk: EventChunk, from: u64) -> EventChunk {
    if chunk.first_index >= from {
        return chunk;
    }
    let mut rest = &*chunk.frames;
    while let Some(index) = first_id(rest).filter(|index| *index < from) {
        let _ = index;
        rest = rest.split_once("\n\n").map_or("", |(_, rest)| rest);
    }
    EventChunk { first_index: from, next_index: chunk.next_index, frames: rest.into() }
}

/// The id of the first frame.
fn first_id(frames: &str) -> Option<u64> {
    frames.strip_prefix("id: ")?.split_once('\n')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(ids: &[u64], next_index: u64) -> EventChunk {
        let frames: String = ids.iter().map(|id| format!("id: {id}\nevent: X\ndata: {{}}\n\n")).collect();
        EventChunk { first_index: ids.first().copied().unwrap_or(next_index), next_index, frames: frames.into() }
    }

    #[test]
    fn a_chunk_is_cut_to_what_a_reader_lacks() {
        let mut next = 2;
        let fresh = advance(&mut next, chunk(&[0, 1, 2, 4], 6)).unwrap();
        assert_eq!(fresh, chunk(&[2, 4], 6));
        assert_eq!(next, 6);
        assert_eq!(advance(&mut next, chunk(&[4, 5], 6)), None);
    }

    #[test]
    fn entries_without_events_move_the_reader_silently() {
        let mut next = 5;
        assert_eq!(advance(&mut next, chunk(&[], 8)), None);
        assert_eq!(next, 8);
    }
}
