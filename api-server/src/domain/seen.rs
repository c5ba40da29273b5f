//! What a run's worker has written, kept while somebody waits for its end: the answer then needs no look into the record.
//!
//! Only of runs that began here and go through in one attempt; whatever else happens, the record is asked.

use std::sync::{Mutex, PoisonError};

use cadre_protocol::journal::{Batch, Record, ToolCallState};
use cadre_protocol::message::Message;
use cadre_protocol::run::{RunEnd, RunMetrics, RunStatus};
use cadre_protocol::tool::ToolExecution;
use cadre_store::rows::{EndedRun, RunDetail, RunRow, StartedRun};

use super::scope::RunScope;

/// Most entries that are kept of a run.
const MAX_ENTRIES: usize = 200;

/// What was seen of a run so far; None once it can't be told any more.
#[derive(Debug)]
pub struct Seen(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    run: RunRow,
    messages: Vec<Message>,
    tools: Vec<ToolCallState>,
    entries: usize,
    end: Option<(u64, RunEnd)>,
}

impl Seen {
    /// Begins with a run that has just started.
    #[must_use]
    pub fn of(started: &StartedRun) -> Self {
        let run = &started.run;
        let is_whole = started.first && run.attempt == 1 && run.next_index == 0 && run.lineage.is_empty();
        let kept = || Kept { run: run.clone(), messages: Vec::new(), tools: Vec::new(), entries: 0, end: None };
        Self(Mutex::new(is_whole.then(kept)))
    }

    /// Nothing is known of a run that is taken over.
    #[must_use]
    pub fn nothing() -> Self {
        Self(Mutex::new(None))
    }

    /// Forgets what was seen.
    pub fn forget(&self) {
        self.lock().take();
    }

    /// Takes note of a batch that was stored as a whole, up to `next_index`.
    pub fn note(&self, batch: Batch, next_index: u64) {
        let mut seen = self.lock();
        if let Some(kept) = seen.as_mut()
            && !kept.note(batch, next_index)
        {
            seen.take();
        }
    }

    /// The run as the record has it now, if it has ended well.
    #[must_use]
    pub fn detail(&self, scope: &RunScope, ended: &EndedRun) -> Option<Box<RunDetail>> {
        let Kept { mut run, messages, tools, entries: _, end } = self.lock().take()?;
        let (finished_at_ms, RunEnd::Completed { content, content_type }) = end? else { return None };
        if ended.cancel_requested {
            return None;
        }
        run.status = RunStatus::Completed;
        run.content = Some(content);
        run.content_type = Some(content_type);
        run.metrics = RunMetrics::clone(&ended.metrics);
        run.finished_at_ms = Some(finished_at_ms);
        let (session_state, agent) = (ended.session_state.clone(), scope.agent.clone());
        Some(Box::new(RunDetail {
            run,
            messages,
            tools,
            session_state,
            agent,
            waiting_on: None,
            approvals: Vec::new(),
        }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// False when the run can't be told from what was seen.
    fn note(&mut self, batch: Batch, next_index: u64) -> bool {
        self.entries += batch.entries.len();
        let follows = batch.first_index == self.run.next_index
            && next_index == batch.first_index.saturating_add(batch.entries.len() as u64);
        if !follows || self.entries > MAX_ENTRIES {
            return false;
        }
        self.run.next_index = next_index;
        batch.entries.into_iter().all(|entry| match entry.record {
            None => true,
            Some(Record::Message(message)) => {
                self.messages.push(message);
                true
            }
            Some(Record::ToolStarted { tool, idempotent }) => self.started(tool, idempotent),
            Some(Record::ToolFinished { tool, .. }) => self.finished(tool),
            Some(Record::Finished(end)) => {
                self.end = Some((entry.at_ms, end));
                true
            }
            // The attempts are counted in the record, and so are the calls that wait.
            Some(Record::Retry {} | Record::Paused { .. }) => false,
        })
    }

    /// A call that begins again is told by the record.
    fn started(&mut self, tool: ToolExecution, idempotent: bool) -> bool {
        if self.tools.iter().any(|known| known.tool.tool_call_id == tool.tool_call_id) {
            return false;
        }
        self.tools.push(ToolCallState { tool, idempotent, finished: false });
        true
    }

    fn finished(&mut self, tool: ToolExecution) -> bool {
        match self.tools.iter_mut().find(|known| known.tool.tool_call_id == tool.tool_call_id) {
            Some(known) => {
                known.tool = tool;
                known.finished = true;
            }
            // Refused before it began.
            None => self.tools.push(ToolCallState { tool, idempotent: false, finished: true }),
        }
        true
    }
}
