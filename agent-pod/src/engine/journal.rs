//! The writing side of a run's journal: numbers entries, collects those that can wait, hands them over in order.

use std::sync::Arc;

use cadre_protocol::event::RunEvent;
use cadre_protocol::journal::{Entry, Record};
use cadre_protocol::message::Message;

use super::bounds;
use super::ports::{Clock, Journal};

/// Collects entries until somebody waits for them.
pub struct RunJournal {
    port: Arc<dyn Journal>,
    clock: Clock,
    first_pending: u64,
    pending: Vec<Entry>,
}

impl RunJournal {
    /// A journal whose next entry has this number.
    #[must_use]
    pub fn new(port: Arc<dyn Journal>, clock: Clock, next_index: u64) -> Self {
        Self { port, clock, first_pending: next_index, pending: Vec::new() }
    }

    /// Adds an event.
    pub fn event(&mut self, event: RunEvent) {
        self.push(Some(event), None);
    }

    /// Adds a message.
    pub fn message(&mut self, message: Message) {
        self.push(None, Some(Record::Message(message)));
    }

    /// Adds an entry.
    pub fn push(&mut self, event: Option<RunEvent>, record: Option<Record>) {
        let event = event.map(bounds::fit_event);
        self.pending.push(Entry { at_ms: (self.clock)(), event, record });
    }

    /// Whether entries wait to be handed over.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Number of the next entry.
    #[must_use]
    pub fn next_index(&self) -> u64 {
        self.first_pending + self.pending.len() as u64
    }

    /// Hands over what waits.
    pub fn send(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let first = self.first_pending;
        self.first_pending = self.next_index();
        self.port.append(first, std::mem::take(&mut self.pending));
    }

    /// Hands over what waits, then waits for room, so that a slow server slows the engine down.
    pub async fn send_paced(&mut self) {
        self.send();
        self.port.room().await;
    }

    /// Hands over what waits, then waits until all of it is durable.
    pub async fn commit(&mut self) {
        self.send();
        self.port.durable(self.first_pending).await;
    }
}
