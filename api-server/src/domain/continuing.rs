//! Going on from a run: a run that failed or waits for a person goes on under its own id, all others are left as they are
//! and a new one begins with what is kept of them.

use std::time::Instant;

use cadre_protocol::ids::RunId;
use cadre_protocol::message::{Message, Role};
use cadre_protocol::run::{RunInput, RunStatus};
use cadre_store::branches::{Fork, KeyOf, ResumeOutcome, Resumption};
use cadre_store::rows::{IdempotencyKey, NewRun, Origin, Principal, RunDetail, RunRow};

use super::boundary::{self, ContinueFrom};
use super::decisions::Answer;
use super::keyed::key_of;
use super::{DomainError, Service, Submit, Submitted};
use crate::telemetry::TraceParent;

/// Looks at a run that keeps changing.
const LOOKS: usize = 3;

/// What a caller wants.
#[derive(Debug, Clone, Default)]
pub struct Continue {
    /// From where.
    pub from: ContinueFrom,
    /// Whether to begin a new run even where the old one could go on.
    pub fork: bool,
    /// Whether its last answer is to be given anew.
    pub regenerate: bool,
    /// Whether the old run then leaves the session's history. Only with `regenerate`; true when absent.
    pub replace_original: Option<bool>,
    /// What the user adds.
    pub input: Option<String>,
    /// The same as a word on the new answer. Only with `regenerate`.
    pub additional_instructions: Option<String>,
    /// What people answer about the calls that the run waits for.
    pub answers: Vec<Answer>,
    /// Who answers; the run's owner when absent.
    pub decided_by: Option<Principal>,
    /// The user that the caller names; the old run's when absent.
    pub user_id: Option<String>,
    /// Idempotency key.
    pub idempotency: Option<IdempotencyKey>,
    /// The caller's span, for a new run.
    pub trace_parent: Option<TraceParent>,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    /// The same run goes on.
    Resume { input: Option<String> },
    /// What is said about its calls is recorded.
    Answer,
    /// It goes on already.
    Attach,
    /// A new run keeps this many messages.
    Fork { keep: usize, input: Option<String>, regenerate: Option<bool> },
}

/// A run that goes on.
#[derive(Debug)]
pub struct Continued {
    /// It: the same one, or the new one.
    pub submitted: Submitted,
    /// Number of the last event that it had before.
    pub after: Option<u64>,
}

impl Service {
    /// Goes on from a run. When this returns, that is durable.
    ///
    /// # Errors
    /// Nothing was changed: the wish makes no sense, or the run is not fit for it.
    pub async fn continue_run(
        &self,
        run_id: &RunId,
        principal: Option<&Principal>,
        wish: Continue,
    ) -> Result<Continued, DomainError> {
        if self.0.stopping.is_cancelled() {
            return Err(DomainError::ShuttingDown);
        }
        let (service, run_id, principal) = (self.clone(), run_id.clone(), principal.cloned());
        // What is durable is placed even if the caller goes away.
        let task = self.0.tasks.spawn(async move { service.go_on(&run_id, principal.as_ref(), wish).await });
        task.await.unwrap_or(Err(DomainError::ShuttingDown))
    }

    async fn go_on(
        &self,
        run_id: &RunId,
        principal: Option<&Principal>,
        wish: Continue,
    ) -> Result<Continued, DomainError> {
        for _ in 0..LOOKS {
            let detail = self.detail(run_id, principal).await?;
            let key = key_of(&detail.run, &wish);
            if let Some(continued) = self.keyed(key.clone()).await? {
                return Ok(continued);
            }
            let done = match plan(&detail.run, &detail.messages, &wish)? {
                Plan::Resume { input } => self.resume_run(&detail, input, None, key).await?,
                Plan::Answer => {
                    let decided_by = wish.decided_by.clone().unwrap_or_else(|| detail.run.principal.clone());
                    self.answer(&detail, &wish.answers, decided_by, key).await?
                }
                Plan::Attach => match self.attach(&detail, &wish.answers) {
                    None => return Err(not_ended(&detail.run)),
                    attached => attached,
                },
                Plan::Fork { keep, input, regenerate } => {
                    let fork = Fork {
                        source: run_id.clone(),
                        keep: keep as u64,
                        of: detail.messages.len() as u64,
                        input: input.as_deref().map(|text| self.said(text)),
                        regenerate,
                    };
                    self.fork_run(detail.run, input, fork, &wish).await?
                }
            };
            if let Some(continued) = done {
                return Ok(continued);
            }
        }
        Err(not_continuable(run_id, "it changes all the time"))
    }

    fn said(&self, text: &str) -> Message {
        Message::text(Role::User, text, self.now_ms())
    }

    /// Puts a run that has failed or was cancelled into its line again. `retries` are its attempts after the first one;
    /// the agent's when absent. None when the run is not as it was.
    pub(crate) async fn resume_run(
        &self,
        detail: &RunDetail,
        input: Option<String>,
        retries: Option<u32>,
        key: Option<KeyOf>,
    ) -> Result<Option<Continued>, DomainError> {
        let run = &detail.run;
        // Before its first step there is no conversation that something could be added to.
        let has_begun = detail.messages.iter().any(|message| message.role == Role::User);
        let (input, question) = match input {
            Some(more) if !has_begun => (None, Some(extended(&run.input, &more))),
            input => (input, None),
        };
        let wanted = Submit { retries, ..Submit::text(run.component.clone(), run.principal.clone(), "") };
        let (agent, revision) = self.resolve(&wanted).await?;
        let is_limited = self.is_limited(&agent);
        let resumption = Resumption {
            run_id: run.run_id.clone(),
            of: detail.messages.len() as u64,
            input: input.map(|text| self.said(&text)),
            question,
            key,
            agent,
            revision,
            max_queue_depth: self.0.limits.max_queue_depth,
            shares: self.0.limits.shares.of_record(),
            is_limited,
            at_ms: self.now_ms(),
        };
        let began = Instant::now();
        match self.0.store.resume(resumption).await? {
            ResumeOutcome::Resumed { run, waiting_on } => {
                self.0.metrics.accepted(began.elapsed());
                self.tell_change(&run);
                if waiting_on.is_none() {
                    self.place_new(&run, is_limited).await;
                }
                let after = run.next_index.checked_sub(1);
                Ok(Some(Continued { submitted: Submitted { run: *run, replayed: false, waiting_on }, after }))
            }
            ResumeOutcome::Replayed(run) => self.replayed(*run).await.map(Some),
            ResumeOutcome::IdempotencyConflict => Err(DomainError::IdempotencyConflict),
            ResumeOutcome::Changed => Ok(None),
            ResumeOutcome::QueueFull => Err(DomainError::QueueFull),
            ResumeOutcome::NamespaceFull => Err(DomainError::NamespaceQueueFull(run.component.namespace.clone())),
        }
    }

    /// None when the source is not as it was.
    async fn fork_run(
        &self,
        source: RunRow,
        input: Option<String>,
        fork: Fork,
        wish: &Continue,
    ) -> Result<Option<Continued>, DomainError> {
        let new = self.successor(source, input.filter(|_| fork.regenerate.is_none()), wish).await?;
        let (run_id, began, is_limited) = (new.run_id.clone(), Instant::now(), self.is_limited(&new.agent));
        let Some(outcome) = self.0.store.fork(new, fork).await? else { return Ok(None) };
        let submitted = self.accepted(&run_id, outcome, None, is_limited).await?;
        self.0.metrics.accepted(began.elapsed());
        Ok(Some(Continued { submitted, after: None }))
    }

    /// A run of the same session, for the same owner, with the agent as it is now. It is asked what is added, or the same
    /// as the old one; files stay where they are.
    async fn successor(&self, source: RunRow, input: Option<String>, wish: &Continue) -> Result<NewRun, DomainError> {
        let RunRow { session_id, component, principal, timeout_seconds, metadata, .. } = source;
        let RunInput { text, files, dependencies, output_schema } = source.input;
        let submit = Submit {
            user_id: wish.user_id.clone().or(source.user_id),
            idempotency: wish.idempotency.clone(),
            trace_parent: wish.trace_parent,
            metadata,
            dependencies,
            output_schema,
            timeout_seconds,
            ..Submit::text(component, principal, input.unwrap_or(text))
        };
        let agent = self.resolve(&submit).await?;
        Ok(self.new_run(submit, agent, session_id, files))
    }
}

/// A question with more after it.
fn extended(input: &RunInput, more: &str) -> RunInput {
    RunInput { text: format!("{}\n\n{more}", input.text), ..input.clone() }
}

/// What a wish means for a run that stands so.
fn plan(run: &RunRow, messages: &[Message], wish: &Continue) -> Result<Plan, DomainError> {
    let Continue { from, fork, regenerate, replace_original, answers, .. } = wish;
    let input = said(wish)?;
    match run.status {
        RunStatus::Cancelled => return Err(not_continuable(&run.run_id, "run is cancelled")),
        RunStatus::Paused if *fork || *regenerate || *from != ContinueFrom::End => return Err(not_ended(run)),
        RunStatus::Paused if input.is_some() => {
            return Err(bad("The run is paused: answer its tool calls; `input` can't be added"));
        }
        RunStatus::Paused => return Ok(Plan::Answer),
        RunStatus::Pending | RunStatus::Running if !answers.is_empty() => return Ok(Plan::Attach),
        RunStatus::Pending | RunStatus::Running => return Err(not_ended(run)),
        RunStatus::Completed | RunStatus::Error | RunStatus::Regenerated => {}
    }
    if !answers.is_empty() {
        return Err(not_continuable(&run.run_id, "it is not paused, so it waits for no results of tools"));
    }
    if *regenerate {
        let keep = boundary::before_answer(messages)
            .ok_or_else(|| bad("Cannot regenerate: the run has no messages to answer"))?;
        return Ok(Plan::Fork { keep, input, regenerate: Some(replace_original.unwrap_or(true)) });
    }
    let keep = boundary_of(*from, messages)?;
    // What a Run object has become was told; whoever looks at the object acts on it.
    let is_own = matches!(run.origin, Origin::RunObject { .. });
    if run.status == RunStatus::Error && keep == messages.len() && !fork && !is_own {
        return Ok(Plan::Resume { input });
    }
    Ok(Plan::Fork { keep, input, regenerate: None })
}

/// The text that is added, and the rules on what goes with what.
fn said(wish: &Continue) -> Result<Option<String>, DomainError> {
    let Continue { from, fork, regenerate, replace_original, input, additional_instructions, .. } = wish;
    let problem = match (input, additional_instructions) {
        (Some(_), Some(_)) => Some("Provide either `additional_instructions` or `input`, not both"),
        (_, Some(_)) if !regenerate => Some("`additional_instructions` only makes sense with `regenerate=true`"),
        _ if replace_original.is_some() && !regenerate => {
            Some("`replace_original` only makes sense with `regenerate=true`")
        }
        _ if *regenerate && *fork => Some("`regenerate=true` always makes a new run; do not pass `fork=true` with it"),
        _ if *regenerate && matches!(from, ContinueFrom::Index(_)) => {
            Some("`regenerate=true` finds the place by itself; do not pass `continue_from` with it")
        }
        _ => None,
    };
    match problem {
        Some(problem) => Err(bad(problem)),
        None => Ok(input.clone().or_else(|| additional_instructions.clone())),
    }
}

fn boundary_of(from: ContinueFrom, messages: &[Message]) -> Result<usize, DomainError> {
    match from {
        ContinueFrom::End => Ok(messages.len()),
        ContinueFrom::LastUser => boundary::last_user(messages)
            .ok_or_else(|| bad("Cannot resolve `continue_from='last_user'`: the run has no user messages")),
        ContinueFrom::Index(index) => index_of(index, messages).map(|index| boundary::snap(messages, index)),
    }
}

/// A number of messages that a caller names.
///
/// # Errors
/// When there are not so many.
pub fn index_of(index: i64, messages: &[Message]) -> Result<usize, DomainError> {
    let known = usize::try_from(index).ok().filter(|index| *index <= messages.len());
    known.ok_or_else(|| bad(&format!("message_index must be between 0 and {}", messages.len())))
}

fn bad(problem: &str) -> DomainError {
    DomainError::BadRequest(problem.to_owned())
}

fn not_ended(run: &RunRow) -> DomainError {
    not_continuable(&run.run_id, &format!("it has not ended ({})", run.status.as_str()))
}

pub(super) fn not_continuable(run_id: &RunId, reason: &str) -> DomainError {
    DomainError::NotContinuable { run_id: run_id.clone(), reason: reason.to_owned() }
}

#[cfg(test)]
#[path = "continuing_tests.rs"]
mod tests;
