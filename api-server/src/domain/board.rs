//! Who is connected here, and which session sits with whom. Pure: no time, no IO.
//!
//! The board is only this replica's view. Nothing on it is a right: leases, epochs and slots in the record decide.

use std::collections::HashMap;
use std::sync::Arc;

use cadre_protocol::ids::{ComponentRef, Epoch, RunId, SessionId, WorkerId};
use cadre_protocol::worker::ServerFrame;
use cadre_store::rows::{Lease, Waiting};
use cadre_store::workers::PlacedRun;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use super::scope::{RunScope, Writer};
use super::seat::{IdleSeat, Link, Orphan, Retired, Seat, Stage, Step, WorkerEntry, is_of};
use crate::placement::Serves;

/// The board.
#[derive(Debug, Default)]
pub struct Board {
    workers: HashMap<WorkerId, WorkerEntry>,
    pool: Vec<WorkerId>,
    next_of_pool: usize,
    by_session: HashMap<SessionId, WorkerId>,
    seats: HashMap<SessionId, Seat>,
    running: HashMap<RunId, SessionId>,
    next_link: u64,
    turns: u64,
}

impl Board {
    /// Workers that are connected, and sessions that run or are about to.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let workers = self.workers.values().filter(|worker| worker.link.is_some()).count();
        (workers, self.seats.values().filter(|seat| !matches!(seat.stage, Stage::Idle)).count())
    }

    /// Decides what happens to the head of a line and reserves what that takes.
    pub fn claim(&mut self, waiting: &Waiting) -> Step {
        if self.is_busy(&waiting.session_id) {
            return Step::Nothing;
        }
        let worker = self.worker_for(&waiting.session_id);
        let seat = self.seat(&waiting.session_id, &waiting.component);
        match worker {
            Some(writer) => {
                seat.stage = Stage::Starting(waiting.run_id.clone());
                let lease = seat.lease.clone().filter(|lease| is_of(lease, &writer));
                Step::Start(writer, lease)
            }
            None => {
                seat.stage = Stage::Wanted(waiting.clone());
                Step::Ensure
            }
        }
    }

    /// Whether a worker was asked for the run already.
    #[must_use]
    pub fn is_wanted(&self, waiting: &Waiting) -> bool {
        let seat = self.seats.get(&waiting.session_id);
        seat.is_some_and(|seat| matches!(&seat.stage, Stage::Wanted(wanted) if wanted.run_id == waiting.run_id))
    }

    /// The session of a namespace whose own worker has had nothing to do for the longest time.
    #[must_use]
    pub fn idlest_in(&self, namespace: &str) -> Option<IdleSeat> {
        let idle = self.by_session.keys().filter_map(|session_id| {
            let seat = self.seats.get(session_id).filter(|seat| matches!(seat.stage, Stage::Idle))?;
            (seat.component.namespace == namespace).then_some((seat.turn, session_id))
        });
        idle.min().map(|(turn, session_id)| IdleSeat { session_id: session_id.clone(), turn })
    }

    /// Reserves a session for a run that is about to be accepted: one that is idle with a connected worker, one that
    /// nobody else can know yet (`fresh`), or one that a pooled worker can have.
    pub fn claim_early(
        &mut self,
        session_id: &SessionId,
        run_id: &RunId,
        component: &ComponentRef,
        fresh: bool,
    ) -> Option<(Writer, Option<Lease>)> {
        let lease = match self.seats.get(session_id) {
            // The record will refuse it: a session is one component's.
            Some(seat) if seat.component != *component => return None,
            Some(seat) if matches!(seat.stage, Stage::Idle) => seat.lease.clone(),
            Some(_) => return None,
            None => None,
        };
        let writer = self.worker_for(session_id)?;
        let lease = lease.filter(|lease| is_of(lease, &writer));
        if lease.is_none() && !fresh && !self.pool.contains(&writer.worker_id) {
            return None;
        }
        self.seat(session_id, component).stage = Stage::Starting(run_id.clone());
        Some((writer, lease))
    }

    /// Reserves a session for a run that the record says a worker of this replica has. False when the board knows.
    pub fn claim_placed(&mut self, run: &PlacedRun) -> bool {
        if self.is_busy(&run.session_id) || !self.is_connected(&run.lease) {
            return false;
        }
        self.seat(&run.session_id, &run.waiting.component).stage = Stage::Starting(run.waiting.run_id.clone());
        true
    }

    /// Whether the session runs or is about to.
    fn is_busy(&self, session_id: &SessionId) -> bool {
        self.seats.get(session_id).is_some_and(|seat| matches!(seat.stage, Stage::Starting(_) | Stage::Running(_)))
    }

    /// Whether a worker is there that could take the session.
    #[must_use]
    pub fn has_worker_for(&self, session_id: &SessionId) -> bool {
        let own = self.by_session.get(session_id);
        own.into_iter().chain(&self.pool).any(|worker_id| self.available(worker_id).is_some())
    }

    /// A reserved start has happened: sends the assignment. False when that worker has gone meanwhile: the lease is to
    /// be released and the run placed again.
    pub fn started(&mut self, scope: Arc<RunScope>, lease: Lease, assignment: ServerFrame) -> bool {
        let there = self.workers.get(&lease.worker_id).filter(|worker| worker.registration == lease.registration);
        let link = there.map(|worker| worker.link.clone());
        let Some(seat) = self.seats.get_mut(&scope.session_id) else { return false };
        if !matches!(&seat.stage, Stage::Starting(run_id) if *run_id == scope.run_id) {
            return false;
        }
        let Some(link) = link else {
            seat.stage = Stage::Wanted(scope.waiting());
            return false;
        };
        seat.lease = Some(lease);
        self.running.insert(scope.run_id.clone(), scope.session_id.clone());
        seat.stage = Stage::Running(scope);
        // Without a link the worker is away for a moment: it gets the assignment when it dials in again.
        if let Some(link) = link {
            let _ = link.control.send(assignment);
        }
        true
    }

    /// A run goes on with the worker that had it before it dialled in here. False when the session is busy: several may look
    /// the run up at once.
    pub fn adopt(&mut self, scope: Arc<RunScope>, lease: Lease) -> bool {
        if self.seats.get(&scope.session_id).is_some_and(|seat| !matches!(seat.stage, Stage::Idle | Stage::Wanted(_))) {
            return false;
        }
        let (session_id, component) = (scope.session_id.clone(), scope.component.clone());
        self.running.insert(scope.run_id.clone(), session_id.clone());
        let seat = self.seat(&session_id, &component);
        seat.lease = Some(lease);
        seat.stage = Stage::Running(scope);
        true
    }

    /// A reserved start came to nothing, or the run ended: frees the seat. Answers it if it is idle now.
    /// `keep_lease` is false when the epoch has been spent.
    pub fn vacate(&mut self, session_id: &SessionId, run_id: &RunId, keep_lease: bool) -> Option<IdleSeat> {
        let of_run = self.seats.get(session_id).is_some_and(|seat| match &seat.stage {
            Stage::Idle => false,
            Stage::Wanted(waiting) => waiting.run_id == *run_id,
            Stage::Starting(starting) => starting == run_id,
            Stage::Running(scope) => scope.run_id == *run_id,
        });
        if !of_run {
            return None;
        }
        let seat = self.seats.get_mut(session_id)?;
        if let Stage::Running(scope) = &seat.stage {
            scope.over.cancel();
            self.running.remove(run_id);
        }
        if !keep_lease {
            seat.lease = None;
        }
        seat.stage = Stage::Idle;
        self.settle(session_id)
    }

    /// A worker is connected; it gets runs once it is registered. Answers the number of its connection, and what an
    /// earlier process of it leaves. An earlier connection of the same process is closed: of two, one may be dead, and
    /// a worker that has lost the living one dials in again.
    pub fn connected(
        &mut self,
        writer: &Writer,
        serves: &Serves,
        control: UnboundedSender<ServerFrame>,
        close: CancellationToken,
    ) -> (u64, Vec<Orphan>) {
        let orphans = match self.workers.get(&writer.worker_id) {
            Some(old) if old.registration != writer.registration => self.remove(&writer.worker_id),
            Some(WorkerEntry { link: Some(old), .. }) => {
                old.close.cancel();
                Vec::new()
            }
            Some(_) | None => Vec::new(),
        };
        self.next_link += 1;
        let id = self.next_link;
        match serves {
            Serves::Any if !self.pool.contains(&writer.worker_id) => self.pool.push(writer.worker_id.clone()),
            Serves::Any => {}
            Serves::Session(session_id) => {
                self.by_session.insert(session_id.clone(), writer.worker_id.clone());
            }
        }
        let entry = WorkerEntry {
            registration: writer.registration.clone(),
            serves: serves.clone(),
            link: Some(Link { id, control, close }),
            registered: false,
            draining: false,
        };
        self.workers.insert(writer.worker_id.clone(), entry);
        (id, orphans)
    }

    /// The record says that the worker is connected here. False when that connection is over.
    pub fn registered(&mut self, writer: &Writer, link: u64) -> bool {
        let entry = self.workers.get_mut(&writer.worker_id).filter(|entry| entry.registration == writer.registration);
        match entry.filter(|entry| entry.link.as_ref().is_some_and(|open| open.id == link)) {
            Some(entry) => {
                entry.registered = true;
                true
            }
            None => false,
        }
    }

    /// Whether the record is known to say that the process is connected here.
    #[must_use]
    pub fn is_registered(&self, writer: &Writer) -> bool {
        let entry = self.workers.get(&writer.worker_id).filter(|entry| entry.registration == writer.registration);
        entry.is_some_and(|entry| entry.registered)
    }

    /// Workers that are connected here and of which the record was told.
    #[must_use]
    pub fn registered_workers(&self) -> Vec<(Writer, Serves)> {
        let there = self.workers.iter().filter(|(_, entry)| entry.registered && entry.link.is_some());
        there
            .map(|(worker_id, entry)| {
                let registration = entry.registration.clone();
                (Writer { worker_id: worker_id.clone(), registration }, entry.serves.clone())
            })
            .collect()
    }

    /// The process of a worker that the board knows.
    #[must_use]
    pub fn process(&self, worker_id: &WorkerId) -> Option<Writer> {
        let entry = self.workers.get(worker_id)?;
        Some(Writer { worker_id: worker_id.clone(), registration: entry.registration.clone() })
    }

    /// Forgets a process that may still be connected; if so, it dials in again. None when another one has taken its
    /// place: that one has nothing to do with it.
    pub fn dismiss(&mut self, writer: &Writer) -> Option<Vec<Orphan>> {
        let entry = self.workers.get(&writer.worker_id)?;
        if entry.registration != writer.registration {
            return None;
        }
        if let Some(link) = &entry.link {
            link.close.cancel();
        }
        Some(self.remove(&writer.worker_id))
    }

    /// Forgets a worker and answers what it leaves.
    pub fn remove(&mut self, worker_id: &WorkerId) -> Vec<Orphan> {
        let Some(entry) = self.workers.remove(worker_id) else { return Vec::new() };
        self.pool.retain(|id| id != worker_id);
        if let Serves::Session(session_id) = &entry.serves {
            self.by_session.remove(session_id);
        }
        let mut orphans = Vec::new();
        let turn = &mut self.turns;
        for (session_id, seat) in &mut self.seats {
            if seat.lease.take_if(|lease| lease.worker_id == *worker_id).is_none() {
                continue;
            }
            *turn += 1;
            seat.turn = *turn;
            let waiting = match &seat.stage {
                Stage::Running(scope) => {
                    scope.over.cancel();
                    self.running.remove(&scope.run_id);
                    Some(scope.waiting())
                }
                Stage::Idle | Stage::Wanted(_) | Stage::Starting(_) => None,
            };
            if let Some(waiting) = &waiting {
                seat.stage = Stage::Wanted(waiting.clone());
            }
            orphans.push(Orphan { session_id: session_id.clone(), waiting });
        }
        self.seats.retain(|_, seat| seat.lease.is_some() || !matches!(seat.stage, Stage::Idle));
        orphans
    }

    /// The connection is broken. False when a newer one has taken its place.
    pub fn disconnected(&mut self, worker_id: &WorkerId, link: u64) -> bool {
        match self.workers.get_mut(worker_id) {
            Some(entry) if entry.link.as_ref().is_some_and(|old| old.id == link) => {
                entry.link = None;
                true
            }
            _ => false,
        }
    }

    /// Whether this process has not come back since it was disconnected.
    #[must_use]
    pub fn is_away(&self, writer: &Writer) -> bool {
        self.workers
            .get(&writer.worker_id)
            .is_some_and(|entry| entry.registration == writer.registration && entry.link.is_none())
    }

    /// Whether the process is connected.
    #[must_use]
    pub fn is_connected(&self, lease: &Lease) -> bool {
        self.workers
            .get(&lease.worker_id)
            .is_some_and(|entry| entry.registration == lease.registration && entry.link.is_some())
    }

    /// The worker takes no further run.
    pub fn draining(&mut self, worker_id: &WorkerId) {
        if let Some(entry) = self.workers.get_mut(worker_id) {
            entry.draining = true;
        }
    }

    /// Runs that wait for a worker and could have this one.
    #[must_use]
    pub fn wanted_of(&self, serves: &Serves) -> Vec<Waiting> {
        let wanted = |seat: &Seat| match &seat.stage {
            Stage::Wanted(waiting) => Some(waiting.clone()),
            Stage::Idle | Stage::Starting(_) | Stage::Running(_) => None,
        };
        match serves {
            Serves::Any => self.seats.values().filter_map(wanted).collect(),
            Serves::Session(session_id) => self.seats.get(session_id).and_then(wanted).into_iter().collect(),
        }
    }

    /// All runs that wait for a worker.
    #[must_use]
    pub fn wanted(&self) -> Vec<Waiting> {
        self.wanted_of(&Serves::Any)
    }

    /// Whether something of the session is on the board.
    #[must_use]
    pub fn knows(&self, session_id: &SessionId) -> bool {
        self.seats.contains_key(session_id)
    }

    /// All runs that workers have.
    #[must_use]
    pub fn all_running(&self) -> Vec<RunId> {
        self.running.keys().cloned().collect()
    }

    /// The runs that a process should be executing.
    #[must_use]
    pub fn runs_of(&self, writer: &Writer) -> Vec<(Arc<RunScope>, Lease)> {
        let run = |seat: &Seat| match (&seat.stage, &seat.lease) {
            (Stage::Running(scope), Some(lease)) if is_of(lease, writer) => Some((scope.clone(), lease.clone())),
            _ => None,
        };
        self.seats.values().filter_map(run).collect()
    }

    /// The scope of a run, if this process has it under this epoch.
    #[must_use]
    pub fn scope(&self, writer: &Writer, run_id: &RunId, epoch: Epoch) -> Option<Arc<RunScope>> {
        let seat = self.seats.get(self.running.get(run_id)?)?;
        match (&seat.stage, &seat.lease) {
            (Stage::Running(scope), Some(lease)) if is_of(lease, writer) && scope.epoch == epoch => Some(scope.clone()),
            _ => None,
        }
    }

    /// The scope and lease of a running run.
    #[must_use]
    pub fn running(&self, run_id: &RunId) -> Option<(Arc<RunScope>, Lease)> {
        let seat = self.seats.get(self.running.get(run_id)?)?;
        match (&seat.stage, &seat.lease) {
            (Stage::Running(scope), Some(lease)) => Some((scope.clone(), lease.clone())),
            _ => None,
        }
    }

    /// Sends a frame to the worker of a lease. False when it is not connected.
    pub fn send(&self, lease: &Lease, frame: ServerFrame) -> bool {
        let entry = self.workers.get(&lease.worker_id).filter(|entry| entry.registration == lease.registration);
        entry.and_then(|entry| entry.link.as_ref()).is_some_and(|link| link.control.send(frame).is_ok())
    }

    /// A worker that serves one session has come and nothing waits for it: gives it an idle seat.
    pub fn rest(&mut self, session_id: &SessionId, component: &ComponentRef) -> Option<IdleSeat> {
        self.seat(session_id, component);
        self.settle(session_id)
    }

    /// Takes an idle session off the board if nothing happened since `idle` was answered. Its worker gets no further
    /// run.
    pub fn retire(&mut self, idle: &IdleSeat) -> Option<Retired> {
        let seat = self.seats.get(&idle.session_id)?;
        if seat.turn != idle.turn || !matches!(seat.stage, Stage::Idle) {
            return None;
        }
        let worker_id = self.by_session.remove(&idle.session_id);
        if let Some(worker_id) = &worker_id {
            self.draining(worker_id);
        }
        let seat = self.seats.remove(&idle.session_id)?;
        Some(Retired { component: seat.component, worker_id })
    }

    /// The worker could not be ended: it takes runs again, and is idle if none has come meanwhile.
    pub fn unretire(&mut self, session_id: &SessionId, retired: Retired) -> Option<IdleSeat> {
        let worker_id = retired.worker_id.filter(|worker_id| self.workers.contains_key(worker_id))?;
        if let Some(entry) = self.workers.get_mut(&worker_id) {
            entry.draining = false;
        }
        self.by_session.insert(session_id.clone(), worker_id);
        self.seat(session_id, &retired.component);
        self.settle(session_id)
    }

    /// A pooled worker's session is forgotten at once: the record still knows its lease, and acquiring that again is
    /// cheap. A session with a worker of its own stays.
    fn settle(&mut self, session_id: &SessionId) -> Option<IdleSeat> {
        let pooled = !self.by_session.contains_key(session_id)
            && self.seats.get(session_id).is_some_and(|seat| match &seat.lease {
                Some(lease) => self.pool.contains(&lease.worker_id),
                None => !self.pool.is_empty(),
            });
        if pooled {
            self.seats.remove(session_id);
            return None;
        }
        self.turns += 1;
        let turn = self.turns;
        let seat = self.seats.get_mut(session_id).filter(|seat| matches!(seat.stage, Stage::Idle))?;
        seat.turn = turn;
        Some(IdleSeat { session_id: session_id.clone(), turn })
    }

    fn seat(&mut self, session_id: &SessionId, component: &ComponentRef) -> &mut Seat {
        self.turns += 1;
        let seat = self.seats.entry(session_id.clone()).or_insert_with(|| Seat {
            component: component.clone(),
            lease: None,
            stage: Stage::Idle,
            turn: 0,
        });
        seat.turn = self.turns;
        seat
    }

    fn worker_for(&mut self, session_id: &SessionId) -> Option<Writer> {
        let leased =
            self.seats.get(session_id).and_then(|seat| seat.lease.as_ref()).map(|lease| lease.worker_id.clone());
        let own = self.by_session.get(session_id).cloned();
        if let Some(writer) = leased.into_iter().chain(own).find_map(|id| self.available(&id)) {
            return Some(writer);
        }
        for _ in 0..self.pool.len() {
            self.next_of_pool = (self.next_of_pool + 1) % self.pool.len();
            if let Some(writer) = self.available(&self.pool[self.next_of_pool]) {
                return Some(writer);
            }
        }
        None
    }

    fn available(&self, worker_id: &WorkerId) -> Option<Writer> {
        let entry =
            self.workers.get(worker_id).filter(|entry| entry.link.is_some() && entry.registered && !entry.draining)?;
        Some(Writer { worker_id: worker_id.clone(), registration: entry.registration.clone() })
    }
}
