//! What a database has to offer.

use tokio::sync::broadcast;

use crate::db::{Db, DbError};
use crate::rows::Change;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Writes, in groups.
    Write,
    /// Reads, each in a snapshot of its own.
    Read,
}

/// A connection that can hold a transaction.
pub trait Connection: Db + Send + 'static {
    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), DbError>;
    /// Makes it durable.
    fn commit(&mut self) -> Result<(), DbError>;
    /// Gives it up. Errors don't matter: the connection is then replaced.
    fn rollback(&mut self);
    /// Marks the beginning of an operation.
    fn savepoint(&mut self) -> Result<(), DbError>;
    /// Keeps what was done since.
    fn release(&mut self) -> Result<(), DbError>;
    /// Undoes what was done since.
    fn undo(&mut self) -> Result<(), DbError>;
    /// Whether the transaction is gone although nobody ended it.
    fn is_lost(&self) -> bool;
    /// Whether the other side has closed the connection.
    fn is_closed(&self) -> bool {
        false
    }
    /// Whether the connection must be kept after an error, because the data live in it.
    fn is_only_copy(&self) -> bool {
        false
    }
    /// Called after a group's answers are out.
    fn tidy(&mut self) {}
}

/// Makes connections.
pub trait Driver: Send + Sync + 'static {
    /// Its connections.
    type Connection: Connection;

    /// Connects.
    fn connect(&self, purpose: Purpose) -> Result<Self::Connection, DbError>;

    /// Its migrations, oldest first; the first has number 1.
    fn migrations(&self) -> &'static [&'static str];

    /// Writers, at least one. A session's operations go to one of them.
    fn writers(&self) -> usize {
        1
    }

    /// Connections for reads; 0 lets the writer read.
    fn readers(&self) -> usize;

    /// News from other replicas, if there can be any.
    fn changes(&self) -> Option<broadcast::Receiver<Change>> {
        None
    }

    /// Tells the other replicas, if there can be any.
    fn tell(&self, _change: &Change) {}
}
