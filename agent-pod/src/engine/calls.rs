//! The tool calls of one model reply: announced together, run one after the other, each recorded before it starts.

use std::time::Duration;

use cadre_protocol::agent::OnUnknownOutcome;
use cadre_protocol::event::RunEvent;
use cadre_protocol::journal::Record;
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::tool::{ToolExecution, ToolMetrics, WorkspaceEffect};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::approvals::Ruling;
use super::bounds;
use super::ends::Stop;
use super::ports::Lost;
use super::resume::{self, Plan};
use super::tools::{self, Outcome, Prepared, Reading};
use super::turn::Turn;

/// A call with all that is decided about it.
struct Task {
    call: ToolCall,
    tool: ToolExecution,
    work: Work,
}

enum Work {
    /// Run it; `recorded` says whether its start is in the journal.
    Run { prepared: Box<Prepared>, recorded: bool },
    /// Its arguments are no good.
    Malformed(String),
    /// Answer without a trace in the stream: no such tool, or the limit is reached.
    Refuse(String),
    /// A person has decided that it does not run here; there is a record and no trace in the stream.
    Tell { text: String, error: bool },
    /// An earlier attempt recorded its result.
    Take,
    /// An earlier attempt may or may not have carried it out.
    Unknown(String),
}

impl Turn {
    /// Works through the calls.
    pub(super) async fn run_calls(&mut self, plans: Vec<Plan>) -> Result<(), Stop> {
        let mut tasks: Vec<Task> = plans.into_iter().map(|plan| self.task(plan)).collect();
        self.announce(&mut tasks);
        for task in tasks {
            self.carry_out(task).await?;
        }
        Ok(())
    }

    fn task(&mut self, plan: Plan) -> Task {
        match plan {
            Plan::Start(call) => self.fresh(call, false),
            Plan::Again(call) => self.fresh(call, true),
            Plan::Take(call, tool) => Task { call, tool: *tool, work: Work::Take },
            Plan::Unknown(call, tool) => {
                let work = Work::Unknown("the engine that ran it was lost".into());
                Task { call, tool: *tool, work }
            }
        }
    }

    fn fresh(&mut self, call: ToolCall, recorded: bool) -> Task {
        if let Some((tool, ruling)) = self.ruled(&call) {
            self.tool_calls_used += 1;
            let work = match ruling {
                Ruling::Run(prepared) => Work::Run { prepared, recorded },
                Ruling::Malformed(why) => Work::Malformed(why),
                Ruling::Tell { text, error } => Work::Tell { text, error },
            };
            return Task { call, tool, work };
        }
        let tool = ToolExecution {
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            tool_args: tools::arguments(&call).unwrap_or_default(),
            created_at: (self.host.clock)() / 1000,
            ..ToolExecution::default()
        };
        self.tool_calls_used += 1;
        let limit = self.assignment.agent.tool_call_limit;
        let work = match tools::read(&call, &self.assignment.agent.tools) {
            _ if limit.is_some_and(|limit| self.tool_calls_used > limit as usize) => Work::Refuse(beyond_limit(&call)),
            Reading::UnknownTool(why) => Work::Refuse(why),
            Reading::Malformed(why) => Work::Malformed(why),
            // Nobody was asked about it, because those who are come up to the limit.
            Reading::Ready(_) if self.gate(&call).is_some() => Work::Refuse(beyond_limit(&call)),
            Reading::Ready(prepared) => Work::Run { prepared, recorded },
        };
        Task { call, tool, work }
    }

    /// All starts come first in the stream. The record of a start is what forbids a second one, so only the call that
    /// runs next gets it; the others get theirs when their turn comes.
    fn announce(&mut self, tasks: &mut [Task]) {
        let mut first = true;
        for Task { tool, work, .. } in tasks {
            match work {
                Work::Run { prepared, recorded } => {
                    let record = (first && !*recorded).then(|| start_record(tool, prepared));
                    *recorded |= record.is_some();
                    first = false;
                    if *recorded {
                        self.started.insert(tool.tool_call_id.clone());
                    }
                    self.journal.push(Some(RunEvent::ToolCallStarted { tool: tool.clone() }), record);
                    self.open.push(tool.clone());
                }
                Work::Malformed(_) => {
                    self.journal.event(RunEvent::ToolCallStarted { tool: tool.clone() });
                    self.open.push(tool.clone());
                }
                Work::Refuse(_) | Work::Tell { .. } | Work::Take | Work::Unknown(_) => {}
            }
        }
    }

    async fn carry_out(&mut self, task: Task) -> Result<(), Stop> {
        let Task { call, tool, work } = task;
        match work {
            Work::Take => {
                let error = tool.tool_call_error.unwrap_or(false);
                self.answer_call(&call, &tool.result.unwrap_or_default(), error);
            }
            Work::Refuse(why) => self.answer_call(&call, &why, true),
            Work::Tell { text, error } => self.tell(&call, tool, &text, error),
            Work::Malformed(why) => self.finish(&call, tool, Outcome::error(why), Duration::ZERO),
            Work::Unknown(reason) => self.finish_unknown(&call, tool, &reason),
            Work::Run { prepared, recorded } => self.run_call(&call, tool, &prepared, recorded).await?,
        }
        Ok(())
    }

    fn tell(&mut self, call: &ToolCall, tool: ToolExecution, text: &str, error: bool) {
        let tool = ToolExecution { tool_call_error: Some(error), result: Some(text.to_owned()), ..tool };
        self.journal.push(None, Some(Record::ToolFinished { tool, effect: None, unknown_outcome: false }));
        self.answer_call(call, text, error);
    }

    async fn run_call(
        &mut self,
        call: &ToolCall,
        tool: ToolExecution,
        prepared: &Prepared,
        recorded: bool,
    ) -> Result<(), Stop> {
        if self.control.drain.is_cancelled() {
            return Err(Stop::HandOver);
        }
        if !recorded {
            self.journal.push(None, Some(start_record(&tool, prepared)));
            self.started.insert(tool.tool_call_id.clone());
        }
        self.journal.commit().await;
        if !self.host.isolation.allows_tools().await {
            let why = "Tools are switched off: the network of this pod is not isolated. Tell the user.";
            self.finish(call, tool, Outcome::error(why), Duration::ZERO);
            return Ok(());
        }
        let started = Instant::now();
        match self.attempt(call, prepared).await {
            Ok(outcome) => self.finish(call, tool, outcome, started.elapsed()),
            Err(Lost { reason, may_have_happened: true }) => self.finish_unknown(call, tool, &reason),
            Err(Lost { reason, .. }) => {
                let why = format!("The tool could not run: {reason}.");
                self.finish(call, tool, Outcome::error(why), started.elapsed());
            }
        }
        // The result is worth keeping at once, but the next step need not wait for that.
        self.journal.send_paced().await;
        Ok(())
    }

    /// Runs a call. When its runner is lost, waits for the runner's return, then runs it again where that is allowed.
    async fn attempt(&self, call: &ToolCall, prepared: &Prepared) -> Result<Outcome, Lost> {
        let lost = match tools::run(call, prepared, &self.host).await {
            Err(lost) if lost.may_have_happened => lost,
            result => return result,
        };
        if let (Some(workspace), tools::Action::Exec(_)) = (&self.host.workspace, &prepared.action)
            && workspace.ready().await.is_err()
        {
            return Err(lost);
        }
        let told_to = self.assignment.agent.on_unknown_outcome == OnUnknownOutcome::Retry;
        let repeatable = (told_to || prepared.idempotent) && !prepared.once;
        if repeatable { tools::run(call, prepared, &self.host).await } else { Err(lost) }
    }

    fn finish(&mut self, call: &ToolCall, tool: ToolExecution, outcome: Outcome, took: Duration) {
        let Outcome { text, error, effect } = outcome;
        let tool = self.completed(tool, &text, error, took);
        let content = format!("{} completed in {:.4}s. ", call_text(&tool), took.as_secs_f64());
        self.complete(call, tool, content, effect, false);
    }

    fn finish_unknown(&mut self, call: &ToolCall, tool: ToolExecution, reason: &str) {
        let reason = bounds::prefix(reason, 500);
        let text = format!(
            "The outcome of this call is unknown: {reason}. It may have taken effect, fully or in part, and it was not \
             run again. Find out what it did before you go on."
        );
        let tool = self.completed(tool, &text, true, Duration::ZERO);
        let content = format!("{} has an unknown outcome. ", call_text(&tool));
        self.complete(call, tool, content, None, true);
        self.journal.event(RunEvent::CustomEvent {
            kind: "tool_outcome_unknown".into(),
            fields: Map::from_iter([
                ("tool_call_id".to_owned(), Value::from(call.id.as_str())),
                ("tool_name".to_owned(), Value::from(call.name.as_str())),
                ("reason".to_owned(), Value::from(reason)),
            ]),
        });
    }

    fn completed(&self, tool: ToolExecution, text: &str, error: bool, took: Duration) -> ToolExecution {
        let end_time = (self.host.clock)() as f64 / 1e3;
        let duration = took.as_secs_f64();
        let metrics = ToolMetrics { start_time: end_time - duration, end_time, duration };
        ToolExecution { tool_call_error: Some(error), result: Some(text.to_owned()), metrics: Some(metrics), ..tool }
    }

    fn complete(
        &mut self,
        call: &ToolCall,
        tool: ToolExecution,
        content: String,
        effect: Option<WorkspaceEffect>,
        unknown_outcome: bool,
    ) {
        self.open.retain(|open| open.tool_call_id != call.id);
        let (text, error) = (tool.result.clone().unwrap_or_default(), tool.tool_call_error == Some(true));
        self.record_result(tool, content, effect, unknown_outcome);
        self.answer_call(call, &text, error);
    }

    fn record_result(
        &mut self,
        tool: ToolExecution,
        content: String,
        effect: Option<WorkspaceEffect>,
        unknown_outcome: bool,
    ) {
        let event = RunEvent::ToolCallCompleted { tool: tool.clone(), content };
        let record = Record::ToolFinished { tool: tool.clone(), effect, unknown_outcome };
        self.journal.push(Some(event), Some(record));
        if tool.tool_call_error == Some(true) {
            let error = tool.result.clone().unwrap_or_default();
            self.journal.event(RunEvent::ToolCallError { tool, error });
        }
    }

    fn answer_call(&mut self, call: &ToolCall, text: &str, error: bool) {
        self.add(Message::tool_result(call, text, error, (self.host.clock)()));
    }

    fn add(&mut self, message: Message) {
        self.journal.message(message.clone());
        self.messages.push(message);
    }

    /// Gives a result to every call that has none, because the run ends: the session's next turn needs a conversation
    /// without gaps. What only stands for a result is marked, so that a run that is resumed looks at the call anew.
    pub(super) fn close_open_calls(&mut self) {
        let Some(at) = self.messages.iter().rposition(|message| message.role == Role::Assistant) else {
            return;
        };
        let (before, after) = self.messages.split_at(at + 1);
        let calls: Vec<ToolCall> =
            before.last().map(|reply| resume::unanswered(reply, after).cloned().collect()).unwrap_or_default();
        let open = std::mem::take(&mut self.open);
        for call in calls {
            let announced = open.iter().find(|tool| tool.tool_call_id == call.id).cloned();
            self.close_call(&call, announced);
        }
    }

    fn close_call(&mut self, call: &ToolCall, announced: Option<ToolExecution>) {
        let recorded = self.known.iter().find(|state| state.finished && state.tool.tool_call_id == call.id);
        if let Some(tool) = recorded.map(|state| &state.tool) {
            let (text, error) = (tool.result.clone().unwrap_or_default(), tool.tool_call_error.unwrap_or(false));
            return self.answer_call(call, &text, error);
        }
        let text = "The run ended before this call had a result.";
        if let Some(tool) = announced {
            let tool = self.completed(tool, text, true, Duration::ZERO);
            let content = format!("{} was stopped. ", call_text(&tool));
            self.record_result(tool, content, None, self.started.contains(&call.id));
        }
        self.add(Message { stand_in: true, ..Message::tool_result(call, text, true, (self.host.clock)()) });
    }
}

fn beyond_limit(call: &ToolCall) -> String {
    let name = bounds::prefix(&call.name, 100);
    format!(
        "The limit of tool calls is reached: {name} was not run. Do not call tools again; answer with what you know."
    )
}

fn start_record(tool: &ToolExecution, prepared: &Prepared) -> Record {
    Record::ToolStarted { tool: tool.clone(), idempotent: prepared.idempotent }
}

/// `name(a=1, b=x)`, short enough for a line.
fn call_text(tool: &ToolExecution) -> String {
    let arguments = tool.tool_args.iter().take(8).map(|(name, value)| {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        format!("{name}={}", bounds::prefix(&text, 80))
    });
    format!("{}({})", tool.tool_name, arguments.collect::<Vec<_>>().join(", "))
}
