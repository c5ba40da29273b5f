//! The worker of the server without listeners: it does what a run's input says.

use cadre_api::domain::lease::Arrival;
use cadre_api::domain::{Service, Writer};
use cadre_api::placement::Serves;
use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::{Epoch, RunId, WorkerId};
use cadre_protocol::journal::{Batch, Entry, Record};
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::requirement::{Decision, RunRequirement, UserInputField, Verdict};
use cadre_protocol::run::{RunEnd, RunFailure};
use cadre_protocol::tool::ToolExecution;
use cadre_protocol::worker::{Assignment, ServerFrame};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Connects the worker; runs of `wait` go on when `released` says so.
pub async fn connect(service: &Service, released: watch::Receiver<bool>) {
    let writer = Writer { worker_id: WorkerId::new("local/1").unwrap(), registration: "r1".to_owned() };
    let (control, mut frames) = mpsc::unbounded_channel();
    let close = CancellationToken::new();
    let arrival =
        Arrival { writer: writer.clone(), serves: Serves::Any, component: None, held: Vec::new(), control, close };
    service.connected(arrival).await;
    let service = service.clone();
    tokio::spawn(async move {
        let cancels = watch::Sender::new(Vec::<RunId>::new());
        while let Some(frame) = frames.recv().await {
            match frame {
                ServerFrame::Assign(assignment) => {
                    let engine = Engine::new(&service, &writer, &assignment);
                    tokio::spawn(engine.run(*assignment, released.clone(), cancels.subscribe()));
                }
                ServerFrame::Cancel { run_id, .. } => cancels.send_modify(|all| all.push(run_id)),
                _ => {}
            }
        }
    });
}

/// Executes one run: `wait` waits, `pause yes-1 input-1 ext-1` waits for a person's answers to calls of these ids (with
/// `then-wait` it waits once more after them), `fail` fails at its first attempt, `tool` calls a tool, `long N` says N pieces, all else
/// is echoed. A run that goes on answers the last thing that the user said.
struct Engine {
    service: Service,
    writer: Writer,
    run_id: RunId,
    epoch: Epoch,
    next: u64,
}

impl Engine {
    fn new(service: &Service, writer: &Writer, assignment: &Assignment) -> Self {
        Self {
            service: service.clone(),
            writer: writer.clone(),
            run_id: assignment.run_id.clone(),
            epoch: assignment.epoch,
            next: assignment.progress.next_index,
        }
    }

    async fn run(
        mut self,
        assignment: Assignment,
        mut released: watch::Receiver<bool>,
        mut cancels: watch::Receiver<Vec<RunId>>,
    ) {
        let said = assignment.progress.messages.iter().rfind(|message| message.role == Role::User);
        let text = said.map_or_else(|| assignment.input.text.clone(), |message| message.content.clone());
        let first = match said {
            Some(_) => entry(Some(RunEvent::RunContinued {}), None),
            None => {
                let started = RunEvent::RunStarted { model: "scripted".into(), model_provider: "Scripted".into() };
                entry(Some(started), Some(Record::Message(Message::text(Role::User, text.clone(), 1_000))))
            }
        };
        self.append(vec![first]).await;
        let own = self.run_id.clone();
        let mut answer = format!("You said: {text}");
        if let Some(calls) = text.strip_prefix("pause ") {
            let calls: Vec<&str> = calls.split(' ').filter(|call| *call != "then-wait").collect();
            match assignment.progress.decisions.is_empty() {
                true => return self.pause(&calls).await,
                false => self.obey(assignment.progress.decisions).await,
            }
            if text.ends_with("then-wait") {
                let _ = released.wait_for(|released| *released).await;
            }
        }
        if text == "wait" {
            self.append(vec![entry(Some(RunEvent::text("partial ")), None)]).await;
            tokio::select! {
                _ = async { let _ = released.wait_for(|released| *released).await; } => {}
                _ = async { let _ = cancels.wait_for(|all| all.contains(&own)).await; } => {
                    let cancelled = RunEvent::RunCancelled { content: "partial ".into(), reason: "cancelled".into() };
                    let end = RunEnd::Cancelled { content: "partial ".into(), reason: "cancelled".into() };
                    return self.append(vec![entry(Some(cancelled), Some(Record::Finished(end)))]).await;
                }
            }
        }
        if text == "fail" && assignment.attempt == 1 {
            let failed = RunEvent::RunError {
                content: "the model is down".into(),
                error_type: "model_provider_error".into(),
                error_id: None,
            };
            let end = RunEnd::Error(RunFailure {
                error_type: "model_provider_error".into(),
                error_id: None,
                message: "the model is down".into(),
                retryable: false,
            });
            return self.append(vec![entry(Some(failed), Some(Record::Finished(end)))]).await;
        }
        if text == "tool" {
            self.tool().await;
        }
        if let Some(pieces) = text.strip_prefix("long ").and_then(|n| n.parse::<usize>().ok()) {
            answer = "x".repeat(pieces);
            for piece in 0..pieces {
                // Every third entry is a record without an event: numbers have holes.
                let event = (piece % 3 != 2).then(|| RunEvent::text("x"));
                let record = event.is_none().then(|| Record::Message(Message::text(Role::System, "note", 1_000)));
                self.append(vec![entry(event, record)]).await;
            }
        } else {
            self.append(vec![entry(Some(RunEvent::text(answer.clone())), None)]).await;
        }
        let said = Message::text(Role::Assistant, answer.clone(), 2_000);
        let completed =
            RunEvent::RunCompleted { content: answer.clone().into(), content_type: "str".into(), metrics: None };
        let end = RunEnd::Completed { content: answer.into(), content_type: "str".into() };
        let entries =
            vec![entry(None, Some(Record::Message(said))), entry(Some(completed), Some(Record::Finished(end)))];
        self.append(entries).await;
    }

    async fn pause(&mut self, calls: &[&str]) {
        let call = |id: &&str| ToolCall {
            id: (*id).into(),
            name: "shell".into(),
            arguments: serde_json::json!({"command": id}).to_string(),
        };
        let calls: Vec<ToolCall> = calls.iter().map(call).collect();
        let requirements: Vec<_> = calls.iter().map(|call| RunRequirement::new(waits(call), 1_500)).collect();
        let asks = Message { tool_calls: calls, ..Message::text(Role::Assistant, "May I?", 1_500) };
        let event = RunEvent::paused("May I?".into(), requirements.clone());
        let paused = Record::Paused { content: "May I?".into(), requirements };
        self.append(vec![
            entry(None, Some(Record::Message(asks))),
            entry(Some(RunEvent::RunContentCompleted {}), None),
            entry(Some(event), Some(paused)),
        ])
        .await;
    }

    /// Carries out what was approved, and tells the model of the rest.
    async fn obey(&mut self, decisions: Vec<Decision>) {
        for Decision { verdict, tool, .. } in decisions {
            let call = ToolCall { id: tool.tool_call_id.clone(), name: tool.tool_name.clone(), arguments: "{}".into() };
            let result = tool.result.clone().unwrap_or_else(|| "done".into());
            let done =
                ToolExecution { result: Some(result.clone()), requires_confirmation: Some(false), ..tool.clone() };
            let approved = verdict == Verdict::Approved;
            let started = RunEvent::ToolCallStarted { tool: tool.clone() };
            let ended = RunEvent::ToolCallCompleted { tool: done.clone(), content: "done".into() };
            let finished = Record::ToolFinished { tool: done, effect: None, unknown_outcome: false };
            self.append(vec![
                entry(approved.then_some(started), approved.then_some(Record::ToolStarted { tool, idempotent: false })),
                entry(approved.then_some(ended), Some(finished)),
                entry(None, Some(Record::Message(Message::tool_result(&call, result, false, 1_600)))),
            ])
            .await;
        }
    }

    async fn tool(&mut self) {
        let call = ToolCall { id: "call-1".into(), name: "shell".into(), arguments: r#"{"command":"ls"}"#.into() };
        let asks = Message { tool_calls: vec![call.clone()], ..Message::text(Role::Assistant, "", 1_500) };
        let args = serde_json::from_str(&call.arguments).unwrap();
        let begun = ToolExecution {
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            tool_args: args,
            ..Default::default()
        };
        let done = ToolExecution { result: Some("a.csv".into()), tool_call_error: Some(false), ..begun.clone() };
        let completed = RunEvent::ToolCallCompleted { tool: done.clone(), content: "shell() completed".into() };
        self.append(vec![
            entry(None, Some(Record::Message(asks))),
            entry(
                Some(RunEvent::ToolCallStarted { tool: begun.clone() }),
                Some(Record::ToolStarted { tool: begun, idempotent: false }),
            ),
            entry(Some(completed), Some(Record::ToolFinished { tool: done, effect: None, unknown_outcome: false })),
            entry(None, Some(Record::Message(Message::tool_result(&call, "a.csv", false, 1_600)))),
        ])
        .await;
    }

    async fn append(&mut self, entries: Vec<Entry>) {
        let count = u64::try_from(entries.len()).unwrap();
        let batch = Batch { run_id: self.run_id.clone(), epoch: self.epoch, first_index: self.next, entries };
        self.service.append(&self.writer, batch).await;
        self.next += count;
    }
}

/// A call that waits, of the kind that its id says.
fn waits(call: &ToolCall) -> ToolExecution {
    let is = |kind: &str| call.id.starts_with(kind).then_some(true);
    let field = UserInputField { name: "cwd".into(), field_type: "str".into(), description: None, value: None };
    ToolExecution {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        tool_args: serde_json::from_str(&call.arguments).unwrap(),
        requires_confirmation: is("yes"),
        requires_user_input: is("input"),
        user_input_schema: is("input").map(|_| vec![field]),
        external_execution_required: is("ext"),
        ..ToolExecution::default()
    }
}

fn entry(event: Option<RunEvent>, record: Option<Record>) -> Entry {
    Entry { at_ms: 1_796_007_354_000, event, record }
}
