//! The appends of one run on one connection: in order, one at a time, merged while they wait.

use std::time::Duration;

use cadre_protocol::ids::{Epoch, RunId};
use cadre_protocol::journal::{Batch, Entry, Record};
use cadre_protocol::worker::ServerFrame;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::rate::Bucket;
use crate::domain::append::Appended;
use crate::domain::hub::Wants;
use crate::domain::{Service, Writer};

/// Batches that may wait; more make the connection wait.
pub const QUEUED_BATCHES: usize = 64;

/// How long a batch that nobody waits for waits for the next one, which then shares its commit.
const COMPANY: Duration = Duration::from_millis(3);

/// Appends what comes until the run is over or the connection has gone. What was taken from the queue is appended even
/// if nobody is there for the acknowledgement.
pub async fn run(service: Service, writer: Writer, mut batches: mpsc::Receiver<Batch>, out: mpsc::Sender<ServerFrame>) {
    let mut bucket = Bucket::new(Instant::now());
    let mut kept = None;
    loop {
        let first = match kept.take() {
            Some(batch) => batch,
            None => match batches.recv().await {
                Some(batch) => batch,
                None => return,
            },
        };
        let (batch, next) = match merge(first, &mut batches) {
            (batch, None) if may_wait(&batch) && service.audience(&batch.run_id) != Some(Wants::Events) => {
                with_company(batch, &mut batches).await
            }
            merged => merged,
        };
        kept = next;
        let (run_id, epoch) = (batch.run_id.clone(), batch.epoch);
        let appended = append(&service, &writer, &mut bucket, batch).await;
        let over = !matches!(appended, Appended::Ack { ended: false, .. });
        if let Some(answer) = answer(appended, run_id, epoch) {
            // The connection may have gone: the worker then sends the batch again on the next one.
            let _ = out.send(answer).await;
        }
        if over {
            // What is there already is still answered; what comes now finds an appender of its own.
            batches.close();
        }
    }
}

async fn append(service: &Service, writer: &Writer, bucket: &mut Bucket, batch: Batch) -> Appended {
    // A run that is not this writer's gets no say in whether it has broken a limit.
    let own = service.scope(writer, &batch.run_id, batch.epoch).is_some();
    if own && batch.entries.len() > Batch::MAX_ENTRIES {
        return service.refuse(&batch.run_id, format!("a batch has more than {} entries", Batch::MAX_ENTRIES)).await;
    }
    if own && !bucket.take(batch.entries.len(), Instant::now()) {
        return service.refuse(&batch.run_id, format!("more than {} events a second", super::rate::PER_SECOND)).await;
    }
    service.append(writer, batch).await
}

fn answer(appended: Appended, run_id: RunId, epoch: Epoch) -> Option<ServerFrame> {
    match appended {
        Appended::Ack { next_index, .. } => Some(ServerFrame::Ack { run_id, epoch, next_index }),
        Appended::Fenced => Some(ServerFrame::Fenced { run_id, epoch }),
        Appended::Refused(reason) => Some(ServerFrame::Refused { run_id, epoch, reason }),
        Appended::Unanswered => None,
    }
}

/// Joins batches that follow each other, as far as one may be long.
fn merge(mut batch: Batch, batches: &mut mpsc::Receiver<Batch>) -> (Batch, Option<Batch>) {
    while let Ok(next) = batches.try_recv() {
        if let Err(next) = join(&mut batch, next) {
            return (batch, Some(next));
        }
    }
    (batch, None)
}

/// Answers the second batch if it can't be joined to the first.
fn join(batch: &mut Batch, next: Batch) -> Result<(), Batch> {
    let end = batch.first_index.saturating_add(batch.entries.len() as u64);
    let fits = batch.entries.len() + next.entries.len() <= Batch::MAX_ENTRIES;
    if next.epoch != batch.epoch || next.first_index != end || !fits {
        return Err(next);
    }
    batch.entries.extend(next.entries);
    Ok(())
}

/// Whether the worker goes on without waiting for this batch: it waits for starts of tools and for the end.
fn may_wait(batch: &Batch) -> bool {
    let awaited = |entry: &Entry| {
        matches!(entry.record, Some(Record::ToolStarted { .. } | Record::Finished(_) | Record::Paused { .. }))
    };
    !batch.entries.iter().any(awaited)
}

/// Waits a little for batches that share the commit.
async fn with_company(mut batch: Batch, batches: &mut mpsc::Receiver<Batch>) -> (Batch, Option<Batch>) {
    let until = Instant::now() + COMPANY;
    while may_wait(&batch) {
        let Ok(Some(next)) = tokio::time::timeout_at(until, batches.recv()).await else { break };
        if let Err(next) = join(&mut batch, next) {
            return (batch, Some(next));
        }
    }
    merge(batch, batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(epoch: u64, first_index: u64, entries: usize) -> Batch {
        let entry = Entry { at_ms: 0, event: None, record: None };
        Batch { run_id: RunId::new("r").unwrap(), epoch: Epoch(epoch), first_index, entries: vec![entry; entries] }
    }

    #[test]
    fn only_batches_that_follow_each_other_are_joined() {
        let (sender, mut receiver) = mpsc::channel(8);
        for next in [batch(1, 2, 3), batch(1, 5, 1), batch(1, 5, 1), batch(2, 6, 1)] {
            sender.try_send(next).unwrap();
        }
        let (joined, kept) = merge(batch(1, 0, 2), &mut receiver);
        assert_eq!(joined.entries.len(), 6);
        assert_eq!(kept.unwrap().first_index, 5);
        let (joined, kept) = merge(batch(1, 5, 1), &mut receiver);
        assert_eq!((joined.entries.len(), kept.unwrap().epoch), (1, Epoch(2)));
    }

    #[test]
    fn a_joined_batch_is_never_too_long() {
        let (sender, mut receiver) = mpsc::channel(8);
        sender.try_send(batch(1, 499, 2)).unwrap();
        let (joined, kept) = merge(batch(1, 0, 499), &mut receiver);
        assert_eq!((joined.entries.len(), kept.unwrap().entries.len()), (499, 2));
    }
}
