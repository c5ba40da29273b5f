//! What must survive a connection: runs that are held, entries without an acknowledgement, open calls. No IO.

use std::collections::{BTreeMap, HashMap, VecDeque};

use cadre_protocol::ids::{Epoch, RunId};
use cadre_protocol::journal::{Batch, Entry};
use cadre_protocol::model::{ModelError, ModelErrorCategory};
use cadre_protocol::worker::{Assignment, HeldRun, RemoteToolResult, ServerFrame, WorkerFrame};
use tokio::sync::{mpsc, oneshot, watch};

use super::batches::{Queued, entry_bytes, in_place_of, split};
use crate::engine::ports::{Chunk, Lost, ModelEvent, Signal};

/// A held run.
pub struct Held {
    epoch: Epoch,
    signal: watch::Sender<Signal>,
    /// First number that is not durable.
    durable: watch::Sender<u64>,
    /// Bytes that wait for an acknowledgement, about.
    waiting: watch::Sender<usize>,
    batches: VecDeque<Queued>,
}

/// Who waits for a call.
pub enum Waiter {
    /// A model call.
    Model(mpsc::UnboundedSender<ModelEvent>),
    /// A tool call, and whether it may be made again.
    Tool(oneshot::Sender<Result<RemoteToolResult, Lost>>, bool),
    /// A piece of a file.
    Blob(oneshot::Sender<Result<Chunk, String>>),
}

struct Open {
    run: HeldRun,
    frame: WorkerFrame,
    waiter: Waiter,
    sent: bool,
}

/// A run's own view of what it shares with the link.
pub struct Reins {
    /// Signals for the run.
    pub signal: watch::Receiver<Signal>,
    /// First number that is not durable.
    pub durable: watch::Receiver<u64>,
    /// Bytes that wait for an acknowledgement, about.
    pub waiting: watch::Receiver<usize>,
}

/// News that the link's owner must act on.
pub enum News {
    /// A run to carry out.
    Assigned(Box<Assignment>, Reins),
    /// The connection ends for good.
    Rejected(String),
}

/// The state.
#[derive(Default)]
pub struct State {
    runs: HashMap<RunId, Held>,
    calls: BTreeMap<u64, Open>,
    next_call: u64,
    /// Other frames, in order.
    other: VecDeque<WorkerFrame>,
    /// Said again on each connection.
    isolation: Option<(bool, String)>,
    /// Whether new runs are refused.
    draining: bool,
}

impl State {
    /// Runs for the greeting.
    pub fn held(&self) -> Vec<HeldRun> {
        self.runs.iter().map(|(run_id, held)| HeldRun { run_id: run_id.clone(), epoch: held.epoch }).collect()
    }

    /// Puts entries into line. Entries of a run that is not held under this epoch are dropped.
    pub fn append(&mut self, run: &HeldRun, first_index: u64, entries: Vec<Entry>) {
        let Some(held) = self.runs.get_mut(&run.run_id).filter(|held| held.epoch == run.epoch) else { return };
        let bytes = entries.iter().map(entry_bytes).sum();
        held.waiting.send_modify(|waiting| *waiting += bytes);
        match held.batches.back_mut() {
            Some(last) if last.takes(first_index, entries.len(), bytes) => {
                last.batch.entries.extend(entries);
                last.bytes += bytes;
            }
            _ => {
                let batch = Batch { run_id: run.run_id.clone(), epoch: run.epoch, first_index, entries };
                held.batches.extend(split(batch).into_iter().map(Queued::new));
            }
        }
    }

    /// Opens a call; gives its number.
    pub fn open(&mut self, run: HeldRun, waiter: Waiter, frame: impl FnOnce(u64) -> WorkerFrame) -> u64 {
        self.next_call += 1;
        let call = self.next_call;
        self.calls.insert(call, Open { run, frame: frame(call), waiter, sent: false });
        call
    }

    /// Forgets a call; tells the server if it knows of it.
    pub fn take_back(&mut self, call: u64) {
        if self.calls.remove(&call).is_some_and(|open| open.sent) {
            self.other.push_back(WorkerFrame::CancelCall { call });
        }
    }

    /// Says whether the network is isolated, now and on each later connection.
    pub fn report_isolation(&mut self, isolated: bool, detail: String) {
        self.other.push_back(WorkerFrame::Isolation { isolated, detail: detail.clone() });
        self.isolation = Some((isolated, detail));
    }

    /// Refuses new runs from now on and says so, on each later connection as well.
    pub fn refuse_runs(&mut self) {
        self.draining = true;
        self.other.push_back(WorkerFrame::Draining {});
    }

    /// Lets go of a run.
    pub fn release(&mut self, run: &HeldRun) {
        if self.runs.get(&run.run_id).is_some_and(|held| held.epoch == run.epoch) {
            self.runs.remove(&run.run_id);
        }
    }

    /// All frames that are ready, marked as sent. Calls come first: somebody waits for a model.
    pub fn ready(&mut self) -> Vec<WorkerFrame> {
        let mut frames: Vec<WorkerFrame> = Vec::new();
        for open in self.calls.values_mut().filter(|open| !open.sent) {
            open.sent = true;
            frames.push(open.frame.clone());
        }
        for queued in self.runs.values_mut().flat_map(|held| &mut held.batches).filter(|queued| !queued.sent) {
            queued.sent = true;
            queued.fixed = true;
            frames.push(WorkerFrame::Append(queued.batch.clone()));
        }
        frames.extend(self.other.drain(..));
        frames
    }

    /// Prepares for a new connection: everything unanswered goes out again, in order.
    pub fn disconnected(&mut self) {
        for queued in self.runs.values_mut().flat_map(|held| &mut held.batches) {
            queued.sent = false;
        }
        // Calls end with their connection, and the rest is said anew.
        self.other.clear();
        self.other.extend(self.draining.then_some(WorkerFrame::Draining {}));
        if let Some((isolated, detail)) = self.isolation.clone() {
            self.other.push_back(WorkerFrame::Isolation { isolated, detail });
        }
        for (call, open) in std::mem::take(&mut self.calls) {
            if !open.sent {
                self.calls.insert(call, open);
                continue;
            }
            match open.waiter {
                Waiter::Tool(waiter, false) => {
                    let reason = "the connection to the API server broke while the request was under way".to_owned();
                    // Nobody may wait any more.
                    let _ = waiter.send(Err(Lost { reason, may_have_happened: true }));
                }
                waiter => {
                    if let Waiter::Model(events) = &waiter {
                        let _ = events.send(ModelEvent::Restarted);
                    }
                    self.calls.insert(call, Open { waiter, sent: false, ..open });
                }
            }
        }
    }

    /// Takes a frame of the server.
    pub fn receive(&mut self, frame: ServerFrame) -> Option<News> {
        match frame {
            ServerFrame::Assign(assignment) => return self.assigned(assignment),
            ServerFrame::Rejected { reason } => return Some(News::Rejected(reason)),
            ServerFrame::Ack { run_id, epoch, next_index } => self.acknowledged(&run_id, epoch, next_index),
            ServerFrame::Fenced { run_id, epoch } | ServerFrame::Refused { run_id, epoch, .. } => {
                self.abort(&run_id, epoch);
            }
            ServerFrame::Cancel { run_id, epoch, reason } => {
                if let Some(held) = self.runs.get(&run_id).filter(|held| held.epoch == epoch) {
                    held.signal.send_if_modified(|signal| {
                        let is_first = *signal == Signal::Go;
                        if is_first {
                            *signal = Signal::Cancel(reason);
                        }
                        is_first
                    });
                }
            }
            ServerFrame::ModelDelta { call, delta } => self.tell_model(call, ModelEvent::Delta(delta)),
            ServerFrame::ModelReply { call, reply } => self.tell_model(call, ModelEvent::Reply(reply)),
            ServerFrame::ModelFailed { call, error } => self.tell_model(call, ModelEvent::Failed(error)),
            ServerFrame::ToolResult { call, result } => {
                if let Some(Open { waiter: Waiter::Tool(waiter, _), .. }) = self.calls.remove(&call) {
                    let _ = waiter.send(Ok(result));
                }
            }
            ServerFrame::BlobChunk { call, data, last } => self.tell_blob(call, Ok(Chunk { data, last })),
            ServerFrame::BlobFailed { call, reason } => self.tell_blob(call, Err(reason)),
            ServerFrame::Welcome { .. } | ServerFrame::Heartbeat {} => {}
        }
        None
    }

    /// Fails a call whose frame is larger than a frame may be, and ends a run whose entries are.
    pub fn too_large(&mut self, frame: WorkerFrame) {
        let message = "The conversation is larger than the API server takes.".to_owned();
        match frame {
            WorkerFrame::ModelCall { call, .. } => {
                let category = ModelErrorCategory::ContextWindow;
                let error = ModelError { category, message, status: None, retry_after_ms: None };
                self.tell_model(call, ModelEvent::Failed(error));
            }
            WorkerFrame::ToolCall { call, .. } => {
                if let Some(Open { waiter: Waiter::Tool(waiter, _), .. }) = self.calls.remove(&call) {
                    let content = "The request is larger than the API server takes.".to_owned();
                    let _ = waiter.send(Ok(RemoteToolResult { content, error: true }));
                }
            }
            WorkerFrame::Append(batch) => {
                self.abort(&batch.run_id, batch.epoch);
                // Were it lost with the connection, the run would come again and end here once more.
                self.other.push_back(WorkerFrame::Append(in_place_of(batch)));
            }
            _ => {}
        }
    }

    fn assigned(&mut self, assignment: Box<Assignment>) -> Option<News> {
        let known = self.runs.get(&assignment.run_id).map(|held| held.epoch);
        if self.draining || known.is_some_and(|epoch| epoch >= assignment.epoch) {
            return None;
        }
        if let Some(epoch) = known {
            self.abort(&assignment.run_id, epoch);
        }
        let (signal, signals) = watch::channel(Signal::Go);
        let (durable, durables) = watch::channel(assignment.progress.next_index);
        let (waiting, waitings) = watch::channel(0);
        let held = Held { epoch: assignment.epoch, signal, durable, waiting, batches: VecDeque::new() };
        self.runs.insert(assignment.run_id.clone(), held);
        Some(News::Assigned(assignment, Reins { signal: signals, durable: durables, waiting: waitings }))
    }

    fn acknowledged(&mut self, run_id: &RunId, epoch: Epoch, next_index: u64) {
        let Some(held) = self.runs.get_mut(run_id).filter(|held| held.epoch == epoch) else { return };
        while let Some(first) = held.batches.front_mut() {
            let end = first.batch.first_index + first.batch.entries.len() as u64;
            if end > next_index {
                let done = next_index.saturating_sub(first.batch.first_index) as usize;
                first.batch.entries.drain(..done);
                first.batch.first_index += done as u64;
                break;
            }
            held.batches.pop_front();
        }
        let left = held.batches.iter().map(|queued| queued.bytes).sum();
        held.waiting.send_replace(left);
        held.durable.send_if_modified(|durable| {
            let grew = next_index > *durable;
            *durable = next_index.max(*durable);
            grew
        });
    }

    fn abort(&mut self, run_id: &RunId, epoch: Epoch) {
        if self.runs.get(run_id).is_some_and(|held| held.epoch == epoch) {
            if let Some(held) = self.runs.remove(run_id) {
                held.signal.send_replace(Signal::Abort);
            }
            self.calls.retain(|_, open| open.run.run_id != *run_id || open.run.epoch != epoch);
        }
    }

    fn tell_model(&mut self, call: u64, event: ModelEvent) {
        let is_last = !matches!(event, ModelEvent::Delta(_) | ModelEvent::Restarted);
        if let Some(Open { waiter: Waiter::Model(events), .. }) = self.calls.get(&call) {
            // Nobody may listen any more.
            let _ = events.send(event);
            if is_last {
                self.calls.remove(&call);
            }
        }
    }

    fn tell_blob(&mut self, call: u64, answer: Result<Chunk, String>) {
        if let Some(Open { waiter: Waiter::Blob(waiter), .. }) = self.calls.remove(&call) {
            let _ = waiter.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use cadre_protocol::journal::Record;
    use cadre_protocol::run::RunEnd;

    use super::*;
    use crate::engine::fakes;

    fn entries(count: usize) -> Vec<Entry> {
        vec![Entry { at_ms: 0, event: None, record: None }; count]
    }

    fn held() -> (State, HeldRun, Reins) {
        let mut state = State::default();
        let assignment = fakes::assignment("hi");
        let run = HeldRun { run_id: assignment.run_id.clone(), epoch: assignment.epoch };
        match state.receive(ServerFrame::Assign(Box::new(assignment))) {
            Some(News::Assigned(_, reins)) => (state, run, reins),
            _ => panic!("not assigned"),
        }
    }

    /// First number and length of each batch that is ready.
    fn ready(state: &mut State) -> Vec<(u64, usize)> {
        let batches = state.ready().into_iter().filter_map(|frame| match frame {
            WorkerFrame::Append(batch) => Some((batch.first_index, batch.entries.len())),
            _ => None,
        });
        batches.collect()
    }

    fn acknowledge(state: &mut State, run: &HeldRun, next_index: u64) {
        let HeldRun { run_id, epoch } = run.clone();
        assert!(state.receive(ServerFrame::Ack { run_id, epoch, next_index }).is_none());
    }

    #[test]
    fn entries_that_wait_travel_together_and_what_was_sent_keeps_its_bounds() {
        let (mut state, run, reins) = held();
        state.append(&run, 0, entries(2));
        state.append(&run, 2, entries(1));
        assert_eq!(ready(&mut state), [(0, 3)]);
        state.append(&run, 3, entries(1));
        assert_eq!(ready(&mut state), [(3, 1)]);
        assert_eq!(ready(&mut state), []);

        acknowledge(&mut state, &run, 2);
        assert_eq!(*reins.durable.borrow(), 2);
        state.disconnected();
        state.append(&run, 4, entries(1));
        assert_eq!(ready(&mut state), [(2, 1), (3, 1), (4, 1)]);
        acknowledge(&mut state, &run, 5);
        assert_eq!((*reins.durable.borrow(), *reins.waiting.borrow()), (5, 0));
        acknowledge(&mut state, &run, 3);
        assert_eq!(*reins.durable.borrow(), 5, "an old acknowledgement takes nothing back");
    }

    #[test]
    fn a_run_whose_entries_are_too_large_ends_and_says_why() {
        let (mut state, run, reins) = held();
        state.append(&run, 0, entries(3));
        let large = state.ready().into_iter().next_back().unwrap();
        state.too_large(large);
        assert_eq!(*reins.signal.borrow(), Signal::Abort);
        let frames = state.ready();
        let [WorkerFrame::Append(batch)] = frames.as_slice() else { panic!("{frames:?}") };
        assert_eq!((batch.first_index, batch.entries.len()), (0, 1));
        let Some(Record::Finished(RunEnd::Error(failure))) = &batch.entries[0].record else { panic!("{batch:?}") };
        assert_eq!(failure.error_type, "limit_exceeded");
    }

    #[test]
    fn no_batch_is_longer_than_it_may_be() {
        let (mut state, run, _reins) = held();
        state.append(&run, 0, entries(Batch::MAX_ENTRIES + 1));
        state.append(&run, Batch::MAX_ENTRIES as u64 + 1, entries(Batch::MAX_ENTRIES));
        let max = Batch::MAX_ENTRIES as u64;
        assert_eq!(ready(&mut state), [(0, 500), (max, 1), (max + 1, 500)]);
    }

    #[test]
    fn a_run_is_given_once_and_its_former_epoch_is_over() {
        let (mut state, run, reins) = held();
        let again = fakes::assignment("hi");
        assert!(state.receive(ServerFrame::Assign(Box::new(again.clone()))).is_none());
        let newer = Assignment { epoch: Epoch(2), ..again };
        assert!(matches!(state.receive(ServerFrame::Assign(Box::new(newer.clone()))), Some(News::Assigned(..))));
        assert_eq!(*reins.signal.borrow(), Signal::Abort);
        state.append(&run, 0, entries(1));
        assert_eq!(ready(&mut state), [], "the former writer writes nothing");
        state.release(&run);
        assert_eq!(state.held().len(), 1, "nor does its end end the new one");

        state.refuse_runs();
        let other = Assignment { epoch: Epoch(3), ..newer };
        assert!(state.receive(ServerFrame::Assign(Box::new(other))).is_none());
        state.disconnected();
        assert_eq!(state.ready(), [WorkerFrame::Draining {}], "each connection learns that the worker is leaving");
    }

    #[test]
    fn a_call_that_was_not_sent_is_taken_back_in_silence() {
        let (mut state, run, _reins) = held();
        let frame = |call| WorkerFrame::CancelCall { call };
        let (events, _stream) = mpsc::unbounded_channel();
        let early = state.open(run.clone(), Waiter::Model(events.clone()), frame);
        state.take_back(early);
        assert!(state.ready().is_empty());
        let late = state.open(run, Waiter::Model(events), frame);
        assert_eq!(state.ready().len(), 1);
        state.take_back(late);
        assert_eq!(state.ready(), [WorkerFrame::CancelCall { call: late }]);
    }
}
