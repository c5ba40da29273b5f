//! A writer: one thread, one connection, one commit for all that wait.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::db::{Db, DbError};
use crate::engine::driver::{Connection, Driver, Purpose};
use crate::engine::job::{Job, Lazy, Urgent};
use crate::error::StoreError;

/// Operations that may wait before callers have to.
const QUEUE: usize = 4_096;
/// Most operations of one commit.
const MAX_GROUP: usize = 512;
/// How long operations that nobody waits for may wait for company.
const LAZY_WINDOW: Duration = Duration::from_millis(3);
/// How long they wait after a failed commit.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Most of them kept while the database does not answer.
const MAX_CARRIED: usize = 16_384;
/// Attempts of an operation that other writers got in the way of.
const MAX_ATTEMPTS: usize = 5;

type Jobs = mpsc::Sender<Box<dyn Job>>;

/// The way to a writer's thread.
pub struct Writer {
    jobs: RwLock<Option<Jobs>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts a writer on a connection.
    pub fn start<D: Driver>(driver: Arc<D>, connection: D::Connection) -> Result<Self, StoreError> {
        let unavailable = |error: std::io::Error| StoreError::Unavailable(error.to_string());
        let clock = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(unavailable)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let mut worker = Worker { driver, connection: Some(connection), queue, clock, carried: Vec::new() };
        let thread =
            std::thread::Builder::new().name("store-writer".into()).spawn(move || worker.run()).map_err(unavailable)?;
        Ok(Self { jobs: RwLock::new(Some(jobs)), thread: Mutex::new(Some(thread)) })
    }

    /// Runs an operation; answers when it is durable.
    pub async fn write<T, F>(&self, order: u64, op: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut dyn Db) -> Result<T, DbError> + Send + 'static,
    {
        let (job, answer) = Urgent::new(order, op);
        self.send(Box::new(job)).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// The same for an operation that gives slots.
    pub async fn write_slots<T, F>(&self, order: u64, op: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut dyn Db) -> Result<T, DbError> + Send + 'static,
    {
        let (job, answer) = Urgent::new(order, op);
        self.send(Box::new(job.giving_slots())).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Queues an operation that becomes durable with a later one, or in a few milliseconds.
    pub async fn write_lazily<F>(&self, order: u64, op: F) -> Result<(), StoreError>
    where
        F: FnMut(&mut dyn Db) -> Result<(), DbError> + Send + 'static,
    {
        self.send(Box::new(Lazy::new(order, op))).await
    }

    async fn send(&self, job: Box<dyn Job>) -> Result<(), StoreError> {
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner).clone();
        jobs.ok_or(StoreError::Closed)?.send(job).await.map_err(|_| StoreError::Closed)
    }

    /// Writes what is queued, then ends the thread. Blocks.
    pub fn close(&self) {
        self.jobs.write().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a store writer has panicked");
        }
    }
}

struct Worker<D: Driver> {
    driver: Arc<D>,
    connection: Option<D::Connection>,
    queue: mpsc::Receiver<Box<dyn Job>>,
    /// Only for time-outs on the queue.
    clock: Runtime,
    /// Lazy operations whose commit has failed: they go first, so that they stay before later writes of their run.
    carried: Vec<Box<dyn Job>>,
}

/// What came out of the queue in time.
enum Next {
    Job(Box<dyn Job>),
    Late,
    Closed,
}

impl<D: Driver> Worker<D> {
    fn run(&mut self) {
        while let Some(group) = self.next_group() {
            self.execute(group);
            if let Some(connection) = &mut self.connection {
                connection.tidy();
            }
        }
        let left = std::mem::take(&mut self.carried);
        if !left.is_empty() {
            self.execute(left);
        }
        for job in self.carried.drain(..) {
            job.answer(Err(DbError::Unavailable("the store was closed".into())));
        }
    }

    fn next_group(&mut self) -> Option<Vec<Box<dyn Job>>> {
        let first = if self.carried.is_empty() {
            Some(self.queue.blocking_recv()?)
        } else {
            match self.receive_within(RETRY_PAUSE) {
                Next::Job(job) => Some(job),
                Next::Late => None,
                Next::Closed => return None,
            }
        };
        let mut group = std::mem::take(&mut self.carried);
        group.extend(first);
        self.drain(&mut group);
        let deadline = Instant::now() + LAZY_WINDOW;
        while group.iter().all(|job| job.is_lazy()) && group.len() < MAX_GROUP {
            match self.receive_within(deadline.saturating_duration_since(Instant::now())) {
                Next::Job(job) => group.push(job),
                Next::Late | Next::Closed => break,
            }
            self.drain(&mut group);
        }
        Some(group)
    }

    fn drain(&mut self, group: &mut Vec<Box<dyn Job>>) {
        while group.len() < MAX_GROUP
            && let Ok(job) = self.queue.try_recv()
        {
            group.push(job);
        }
    }

    fn receive_within(&mut self, time: Duration) -> Next {
        let Self { queue, clock, .. } = self;
        match clock.block_on(async { tokio::time::timeout(time, queue.recv()).await }) {
            Ok(Some(job)) => Next::Job(job),
            Ok(None) => Next::Closed,
            Err(_) => Next::Late,
        }
    }

    fn execute(&mut self, mut group: Vec<Box<dyn Job>>) {
        if self.driver.writers() > 1 {
            group.sort_by_key(|job| job.order());
        }
        match self.commit(&mut group) {
            Ok(outcomes) => {
                for (job, outcome) in group.into_iter().zip(outcomes) {
                    match outcome {
                        Err(DbError::Conflict(_)) => self.execute_alone(job),
                        outcome => self.answer(job, outcome),
                    }
                }
            }
            Err(DbError::Conflict(_)) => group.into_iter().for_each(|job| self.execute_alone(job)),
            Err(error) => group.into_iter().for_each(|job| self.answer(job, Err(error.clone()))),
        }
    }

    fn execute_alone(&mut self, job: Box<dyn Job>) {
        let mut alone = vec![job];
        let mut outcome = Ok(());
        for _ in 0..MAX_ATTEMPTS {
            outcome = match self.commit(&mut alone) {
                Ok(outcomes) => outcomes.into_iter().next().unwrap_or(Ok(())),
                Err(error) => Err(error),
            };
            if !matches!(outcome, Err(DbError::Conflict(_))) {
                break;
            }
        }
        for job in alone {
            self.answer(job, outcome.clone());
        }
    }

    fn answer(&mut self, job: Box<dyn Job>, outcome: Result<(), DbError>) {
        match outcome {
            Err(DbError::Unavailable(_)) if job.is_lazy() && self.carried.len() < MAX_CARRIED => self.carried.push(job),
            outcome => job.answer(outcome),
        }
    }

    /// One transaction. An error means that nothing of it was written.
    fn commit(&mut self, group: &mut [Box<dyn Job>]) -> Result<Vec<Result<(), DbError>>, DbError> {
        let mut connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.driver.connect(Purpose::Write)?,
        };
        let mut begun = connection.begin();
        if begun.is_err() && connection.is_closed() {
            connection = self.driver.connect(Purpose::Write)?;
            begun = connection.begin();
        }
        let result = begun.and_then(|()| transaction(&mut connection, group));
        if result.is_err() {
            connection.rollback();
        }
        // A connection that failed is not trusted again, unless the data live in it: that its server may only be read, or has
        // no room, may be this server's state alone.
        let unavailable = |outcome: &Result<(), DbError>| matches!(outcome, Err(DbError::Unavailable(_)));
        let is_broken = match &result {
            Ok(outcomes) => outcomes.iter().any(unavailable),
            Err(error) => matches!(error, DbError::Unavailable(_)),
        };
        if !is_broken || connection.is_only_copy() {
            self.connection = Some(connection);
        }
        result
    }
}

/// All operations in one transaction. Nearly always all of them succeed, so they are not kept apart at first.
fn transaction<C: Connection>(
    connection: &mut C,
    group: &mut [Box<dyn Job>],
) -> Result<Vec<Result<(), DbError>>, DbError> {
    let done = together(connection, group).and_then(|()| connection.commit().map_err(uncertain));
    match done {
        Ok(()) => Ok(vec![Ok(()); group.len()]),
        Err(Failed { error, may_be_committed }) if may_be_committed || group.len() == 1 || connection.is_lost() => {
            Err(error)
        }
        // One of them is to blame, and the others must not suffer for it.
        Err(_) => {
            connection.rollback();
            connection.begin()?;
            apart(connection, group)
        }
    }
}

/// Why a transaction failed.
struct Failed {
    error: DbError,
    /// The answer to the commit was lost: it must not be tried again from here.
    may_be_committed: bool,
}

fn uncertain(error: DbError) -> Failed {
    Failed { may_be_committed: matches!(error, DbError::Unavailable(_)), error }
}

fn together<C: Connection>(connection: &mut C, group: &mut [Box<dyn Job>]) -> Result<(), Failed> {
    let failed = |error| Failed { error, may_be_committed: false };
    lock_slots(connection, group).map_err(failed)?;
    group.iter_mut().try_for_each(|job| job.run(connection)).map_err(failed)
}

/// The same with a savepoint for each, so that one that fails leaves nothing.
fn apart<C: Connection>(connection: &mut C, group: &mut [Box<dyn Job>]) -> Result<Vec<Result<(), DbError>>, DbError> {
    lock_slots(connection, group)?;
    let mut outcomes = Vec::with_capacity(group.len());
    for job in group {
        connection.savepoint()?;
        let outcome = job.run(connection);
        if connection.is_lost() {
            return Err(outcome.err().unwrap_or_else(|| DbError::Unavailable("the transaction is gone".into())));
        }
        match outcome {
            Ok(()) => connection.release()?,
            Err(_) => connection.undo()?,
        }
        outcomes.push(outcome);
    }
    connection.commit()?;
    Ok(outcomes)
}

fn lock_slots<C: Connection>(connection: &mut C, group: &[Box<dyn Job>]) -> Result<(), DbError> {
    if group.iter().any(|job| job.gives_slots()) { connection.lock_slots() } else { Ok(()) }
}
