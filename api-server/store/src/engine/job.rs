//! An operation on its way to a writer, and its answer on the way back.

use tokio::sync::oneshot;

use crate::db::{Db, DbError};
use crate::error::StoreError;

/// An operation of any kind.
pub trait Job: Send {
    /// Does it; may be called again if its transaction is lost.
    fn run(&mut self, db: &mut dyn Db) -> Result<(), DbError>;
    /// Answers whoever waits: committed, or failed.
    fn answer(self: Box<Self>, outcome: Result<(), DbError>);
    /// Whether nobody waits for it.
    fn is_lazy(&self) -> bool;
    /// Operations with the same number keep their order; others may be sorted by it, so that replicas lock rows in one
    /// order.
    fn order(&self) -> u64;
    /// Whether it gives slots.
    fn gives_slots(&self) -> bool {
        false
    }
}

/// An operation that somebody waits for.
pub struct Urgent<T, F> {
    op: F,
    order: u64,
    gives_slots: bool,
    value: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Urgent<T, F> {
    /// The operation, and where its answer comes out.
    pub fn new(order: u64, op: F) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Self { op, order, gives_slots: false, value: None, reply }, answer)
    }

    /// The same, for an operation that gives slots.
    pub fn giving_slots(self) -> Self {
        Self { gives_slots: true, ..self }
    }
}

impl<T, F> Job for Urgent<T, F>
where
    T: Send,
    F: FnMut(&mut dyn Db) -> Result<T, DbError> + Send,
{
    fn run(&mut self, db: &mut dyn Db) -> Result<(), DbError> {
        self.value = Some((self.op)(db)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), DbError>) {
        let Self { value, reply, .. } = *self;
        let answer = match (outcome, value) {
            (Ok(()), Some(value)) => Ok(value),
            (Ok(()), None) => Err(StoreError::Corrupt("an operation has no answer".into())),
            (Err(error), _) => Err(error.into()),
        };
        // A caller that went away needs no answer.
        let _ = reply.send(answer);
    }

    fn is_lazy(&self) -> bool {
        false
    }

    fn order(&self) -> u64 {
        self.order
    }

    fn gives_slots(&self) -> bool {
        self.gives_slots
    }
}

/// An operation that rides along.
pub struct Lazy<F> {
    op: F,
    order: u64,
}

impl<F> Lazy<F> {
    /// The operation.
    pub fn new(order: u64, op: F) -> Self {
        Self { op, order }
    }
}

impl<F> Job for Lazy<F>
where
    F: FnMut(&mut dyn Db) -> Result<(), DbError> + Send,
{
    fn run(&mut self, db: &mut dyn Db) -> Result<(), DbError> {
        (self.op)(db)
    }

    fn answer(self: Box<Self>, outcome: Result<(), DbError>) {
        if let Err(error) = outcome {
            tracing::error!(%error, "an operation that nobody waits for has failed");
        }
    }

    fn is_lazy(&self) -> bool {
        true
    }

    fn order(&self) -> u64 {
        self.order
    }
}
