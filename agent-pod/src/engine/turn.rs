//! One run from its assignment to its end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::agent::OnWorkspaceLoss;
use cadre_protocol::event::RunEvent;
use cadre_protocol::exec::{ExecBody, ExecOp};
use cadre_protocol::journal::{Record, ToolCallState};
use cadre_protocol::message::{Message, Role};
use cadre_protocol::model::ToolSpec;
use cadre_protocol::requirement::Decision;
use cadre_protocol::run::RunEnd;
use cadre_protocol::tool::ToolExecution;
use cadre_protocol::worker::Assignment;
use serde_json::Value;

use super::ends::{self, Stop};
use super::journal::RunJournal;
use super::ports::{Control, Host, Signal};
use super::resume::{self, Plan, Step};
use super::rollback::{self, Rollback};
use super::stage::Uploaded;
use super::{approvals, context, tools};

/// How the engine let go of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It has ended, or waits for a person, durably.
    Ended,
    /// Another engine goes on with it; all that is known is durable.
    HandedOver,
    /// The right to write was lost.
    Aborted,
}

/// A run at work.
pub(super) struct Turn {
    pub(super) host: Host,
    pub(super) control: Control,
    pub(super) assignment: Arc<Assignment>,
    pub(super) journal: RunJournal,
    /// This run's messages, as recorded.
    pub(super) messages: Vec<Message>,
    /// Tool calls of the last reply that earlier attempts recorded.
    pub(super) known: Vec<ToolCallState>,
    /// What people have decided about calls of the last reply.
    pub(super) decisions: HashMap<String, Decision>,
    /// Text of the answer that is on its way.
    pub(super) partial: String,
    /// Calls that were announced and have no result.
    pub(super) open: Vec<ToolExecution>,
    /// Calls whose start is recorded.
    pub(super) started: HashSet<String>,
    pub(super) tool_calls_used: usize,
    pub(super) specs: Vec<ToolSpec>,
    /// Attempts after failures, in this process and before.
    pub(super) retries: u32,
    /// Whether nobody has worked on this conversation before.
    pub(super) is_new: bool,
    /// What became of the session's files in this workspace.
    pub(super) uploads: Uploaded,
    /// What is done of that which comes before the first step.
    begun: Begun,
    system: Option<Message>,
    model_calls: u32,
    /// News for the model that must not come between a call and its result.
    notes: Vec<Message>,
}

/// How far the beginning of a run has come: a further attempt takes it up where it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Begun {
    Nothing,
    Announced,
    Ready,
}

/// Carries out a run. Whatever is awaited, a signal or the deadline ends it at once; what it had started is killed,
/// because dropping a future of [`super::ports`] does that.
pub async fn run(assignment: Assignment, host: Host, control: Control) -> Exit {
    let mut turn = Turn::new(assignment, host, control.clone());
    let deadline = turn.deadline();
    let outcome = tokio::select! {
        biased;
        signal = control.signalled() => match signal {
            Signal::Cancel(reason) => Ok(RunEnd::Cancelled { content: String::new(), reason }),
            Signal::Abort | Signal::Go => return Exit::Aborted,
        },
        () = sleep_or_forever(deadline) => Err(Stop::failed("timeout", "The run took longer than it may.", false)),
        outcome = async {
            let Some(_slot) = control.slot().await else { return Err(Stop::HandOver) };
            turn.drive().await
        } => outcome,
    };
    let exit = turn.end(outcome);
    tokio::select! {
        biased;
        () = control.aborted() => Exit::Aborted,
        () = turn.journal.commit() => exit,
    }
}

async fn sleep_or_forever(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

impl Turn {
    fn new(mut assignment: Assignment, host: Host, control: Control) -> Self {
        let mut progress = std::mem::take(&mut assignment.progress);
        let (known, decisions) = approvals::of_last_reply(&mut progress);
        let now_ms = (host.clock)();
        let is_new = assignment.attempt <= 1 && progress.messages.is_empty();
        let journal = RunJournal::new(host.journal.clone(), host.clock, progress.next_index);
        let agent = &assignment.agent;
        let system = context::system_message(agent, &assignment.input, &assignment.session_state, now_ms);
        Self {
            control,
            journal,
            tool_calls_used: progress.messages.iter().filter(|message| message.role == Role::Tool).count(),
            messages: progress.messages,
            known,
            decisions,
            partial: String::new(),
            open: Vec::new(),
            started: HashSet::new(),
            specs: tools::specs(&agent.tools),
            retries: progress.retries,
            is_new,
            uploads: Uploaded::default(),
            begun: Begun::Nothing,
            system,
            model_calls: progress.model_calls,
            notes: Vec::new(),
            assignment: Arc::new(assignment),
            host,
        }
    }

    fn deadline(&self) -> Option<Duration> {
        let deadline_ms = self.assignment.deadline_ms?;
        Some(Duration::from_millis(deadline_ms.saturating_sub((self.host.clock)())))
    }

    /// Attempts until one comes to an end that is none that may pass.
    async fn drive(&mut self) -> Result<RunEnd, Stop> {
        loop {
            match self.steps().await {
                Err(Stop::Failed { failure, after_ms }) => self.retry(failure, after_ms).await?,
                outcome => return outcome,
            }
        }
    }

    async fn steps(&mut self) -> Result<RunEnd, Stop> {
        self.begin().await?;
        loop {
            match resume::next(&self.messages, &self.known, self.assignment.agent.on_unknown_outcome) {
                Step::AskModel => self.ask_model().await?,
                Step::RunTools(plans) => self.work_through(plans).await?,
                Step::Finish => return Ok(self.answer()),
            }
        }
    }

    /// Runs the calls that need nobody, then waits for a person if others do.
    async fn work_through(&mut self, plans: Vec<Plan>) -> Result<(), Stop> {
        let (free, waiting) = self.part(plans);
        if !free.is_empty() {
            self.run_calls(free).await?;
        }
        if waiting.is_empty() { Ok(()) } else { Err(Stop::Paused(waiting)) }
    }

    /// The run's first entries, and all that must be known before the model is asked.
    async fn begin(&mut self) -> Result<(), Stop> {
        if self.begun < Begun::Announced {
            self.announce_run().await?;
            self.begun = Begun::Announced;
        }
        if self.begun < Begun::Ready {
            if !self.finished() {
                self.stage_files().await?;
                self.compare_workspace().await?;
            }
            self.begun = Begun::Ready;
        }
        Ok(())
    }

    async fn announce_run(&mut self) -> Result<(), Stop> {
        // Nothing of it is recorded and no other run's conversation goes before it.
        let is_first = self.journal.next_index() == 0 && self.messages.is_empty();
        if !self.specs.is_empty() {
            self.host.isolation.start();
        }
        let user = if self.messages.iter().any(|message| message.role == Role::User) {
            None
        } else {
            Some(self.user_message().await?)
        };
        let model = &self.assignment.agent.model;
        let event = match is_first {
            true => RunEvent::RunStarted { model: model.model_id.clone(), model_provider: model.provider.clone() },
            false => RunEvent::RunContinued {},
        };
        self.journal.push(Some(event), user.clone().map(Record::Message));
        self.messages.extend(user);
        Ok(())
    }

    fn finished(&self) -> bool {
        let policy = self.assignment.agent.on_unknown_outcome;
        resume::next(&self.messages, &self.known, policy) == Step::Finish
    }

    /// Tells the model, once, of files that a new workspace lacks.
    async fn compare_workspace(&mut self) -> Result<(), Stop> {
        let assignment = self.assignment.clone();
        let Some(workspace) = self.host.workspace.clone().filter(|_| self.may_have_losses()) else {
            return Ok(());
        };
        self.journal.send();
        let lost = |lost: super::ports::Lost| Stop::failed("sandbox_unavailable", &lost.reason, true);
        let workspace_id = workspace.ready().await.map_err(lost)?;
        let prefix = rollback::message_id_prefix(&workspace_id);
        let mut told = self.messages.iter().chain(&assignment.history);
        if told.any(|message| message.id.starts_with(&prefix)) {
            return Ok(());
        }
        let candidates = rollback::candidates(&assignment.effects, &workspace_id);
        let mut missing = Vec::new();
        let files: Vec<String> = candidates.written.keys().map(|file| (*file).to_owned()).collect();
        for paths in files.chunks(200) {
            if let ExecBody::Missing { paths } =
                workspace.request(ExecOp::Missing { paths: paths.to_vec() }).await.map_err(lost)?
            {
                missing.extend(paths);
            }
        }
        let Uploaded { absent, reset } = &self.uploads;
        match candidates.losses(&missing, absent, reset) {
            Some(losses) => {
                let may_be_more = losses.may_be_more || assignment.uploads.truncated;
                self.tell_of_losses(&Rollback { may_be_more, ..losses }, &workspace_id)
            }
            None => Ok(()),
        }
    }

    fn may_have_losses(&self) -> bool {
        let Uploaded { absent, reset } = &self.uploads;
        has_files(&self.assignment) || !absent.is_empty() || !reset.is_empty()
    }

    fn tell_of_losses(&mut self, losses: &Rollback, workspace_id: &str) -> Result<(), Stop> {
        self.journal.event(losses.event());
        if self.assignment.agent.on_workspace_loss == OnWorkspaceLoss::Fail {
            let message = "The workspace was replaced, and files that it held are gone.";
            return Err(Stop::failed("workspace_lost", message, false));
        }
        let id = rollback::message_id(workspace_id, &self.assignment.run_id);
        self.notes.push(losses.message(id, (self.host.clock)()));
        Ok(())
    }

    async fn ask_model(&mut self) -> Result<(), Stop> {
        if self.control.drain.is_cancelled() {
            return Err(Stop::HandOver);
        }
        let max_turns = self.assignment.agent.max_turns.max(1);
        if self.model_calls >= max_turns {
            let message = format!("The run made {max_turns} model calls without coming to an end.");
            return Err(Stop::failed("max_turns", message, false));
        }
        for note in std::mem::take(&mut self.notes) {
            self.journal.message(note.clone());
            self.messages.push(note);
        }
        let history = &self.assignment.history;
        let conversation = context::conversation(self.system.as_ref(), history, &self.messages);
        let message = self.ask(conversation).await?;
        self.model_calls += 1;
        self.messages.push(message);
        Ok(())
    }

    /// The schema that the answer must follow.
    pub(super) fn schema(&self) -> Option<&Value> {
        self.assignment.input.output_schema.as_ref().or(self.assignment.agent.output_schema.as_ref())
    }

    fn answer(&mut self) -> RunEnd {
        let text = self.messages.last().map(|message| message.content.clone()).unwrap_or_default();
        let (content, content_type) = ends::answer(&text, self.schema());
        RunEnd::Completed { content, content_type }
    }

    /// Writes what is left to write.
    fn end(&mut self, outcome: Result<RunEnd, Stop>) -> Exit {
        let end = match outcome {
            Err(Stop::HandOver) => return Exit::HandedOver,
            Err(Stop::Paused(requirements)) => {
                self.pause(requirements);
                return Exit::Ended;
            }
            Err(Stop::Failed { failure, after_ms: _ }) => RunEnd::Error(failure),
            Ok(RunEnd::Cancelled { reason, .. }) => {
                RunEnd::Cancelled { content: std::mem::take(&mut self.partial), reason }
            }
            Ok(end) => end,
        };
        self.close_open_calls();
        ends::write(&mut self.journal, end);
        Exit::Ended
    }
}

fn has_files(assignment: &Assignment) -> bool {
    assignment.effects.iter().any(|effect| !effect.effect.files.is_empty())
}
