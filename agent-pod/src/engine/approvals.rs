//! Calls that wait for a person: which they are, and what is done once a person has decided.
//!
//! An approval is for one execution of exactly one call (security rule 9): what was decided about is compared with what
//! the model asked for, and a call that has begun never begins again on the same word.

use std::collections::HashMap;

use cadre_protocol::event::RunEvent;
use cadre_protocol::journal::{Progress, Record, ToolCallState};
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::requirement::{Decision, Gate, RunRequirement, UserInputField, Verdict, arguments_sha256};
use cadre_protocol::tool::ToolExecution;
use serde_json::{Map, Value};

use super::bounds;
use super::resume::{self, Plan};
use super::tools::{self, Reading};
use super::turn::Turn;

/// What follows from a decision.
pub(super) enum Ruling {
    /// The call runs, once.
    Run(Box<tools::Prepared>),
    /// Its arguments, completed by the user, are no good.
    Malformed(String),
    /// It does not run; this is what the model is told.
    Tell {
        /// For the model.
        text: String,
        /// Whether that is a failure.
        error: bool,
    },
}

/// What earlier engines and people have said about the calls that the last reply still waits for. Of earlier replies'
/// calls nothing counts any more: a model may use their ids again.
pub(super) fn of_last_reply(progress: &mut Progress) -> (Vec<ToolCallState>, HashMap<String, Decision>) {
    let at = progress.messages.iter().rposition(|message| message.role == Role::Assistant);
    let ids: Vec<&str> = match at.map(|at| progress.messages.split_at(at + 1)) {
        Some((before, after)) => before.last().into_iter().flat_map(|reply| open(reply, after)).collect(),
        None => Vec::new(),
    };
    let known = std::mem::take(&mut progress.tool_calls);
    let decisions = std::mem::take(&mut progress.decisions);
    let is_open = |id: &str| ids.contains(&id);
    (
        known.into_iter().filter(|state| is_open(&state.tool.tool_call_id)).collect(),
        decisions
            .into_iter()
            .filter(|decision| is_open(&decision.tool.tool_call_id))
            .map(|decision| (decision.tool.tool_call_id.clone(), decision))
            .collect(),
    )
}

fn open<'a>(reply: &'a Message, after: &'a [Message]) -> impl Iterator<Item = &'a str> {
    resume::unanswered(reply, after).map(|call| call.id.as_str())
}

impl Turn {
    /// Parts calls that need nobody from those that wait for a person.
    pub(super) fn part(&self, plans: Vec<Plan>) -> (Vec<Plan>, Vec<RunRequirement>) {
        let (mut free, mut waiting) = (Vec::new(), Vec::new());
        for plan in plans {
            match plan {
                Plan::Start(call) => match self.waits(&call) {
                    Some(tool) => waiting.push((call, tool)),
                    None => free.push(Plan::Start(call)),
                },
                Plan::Again(call) => free.push(self.again(call)),
                other @ (Plan::Take(..) | Plan::Unknown(..)) => free.push(other),
            }
        }
        // Nobody is asked about a call that would be refused all the same.
        let limit = self.assignment.agent.tool_call_limit.map_or(usize::MAX, |limit| limit as usize);
        let room = limit.saturating_sub(self.tool_calls_used + free.len()).min(waiting.len());
        free.extend(waiting.split_off(room).into_iter().map(|(call, _)| Plan::Start(call)));
        let now_ms = (self.host.clock)();
        (free, waiting.into_iter().map(|(_, tool)| RunRequirement::new(tool, now_ms)).collect())
    }

    /// A call that a person has approved began once: it does not begin again.
    fn again(&self, call: ToolCall) -> Plan {
        let began = self.known.iter().find(|state| state.tool.tool_call_id == call.id);
        match began.filter(|_| self.gate(&call).is_some()) {
            Some(state) => Plan::Unknown(call, Box::new(state.tool.clone())),
            None => Plan::Again(call),
        }
    }

    /// Why a call waits for a person, whatever was decided.
    pub(super) fn gate(&self, call: &ToolCall) -> Option<Gate> {
        let bindings = &self.assignment.agent.tools;
        let (binding, spec) = tools::find(&call.name, bindings)?;
        let arguments = spec.parameters.get("properties").and_then(Value::as_object);
        binding.gates.of(&call.name, arguments.into_iter().flat_map(Map::keys).map(String::as_str))
    }

    /// The call as a person is asked about it. None for one that nobody need be asked about: it is free, decided, or no
    /// good, which the model is told at once.
    fn waits(&self, call: &ToolCall) -> Option<ToolExecution> {
        if self.decisions.contains_key(&call.id) {
            return None;
        }
        let gate = self.gate(call)?;
        let tool_args = tools::arguments(call).ok()?;
        let bindings = &self.assignment.agent.tools;
        if gate != Gate::UserInput && !matches!(tools::read(call, bindings), Reading::Ready(_)) {
            return None;
        }
        let is = |wanted: Gate| (gate == wanted).then_some(true);
        let fields = || {
            tools::find(&call.name, bindings)
                .map(|(binding, spec)| user_fields(&spec.parameters, &binding.gates.user_input, &tool_args))
        };
        Some(ToolExecution {
            tool_call_id: call.id.clone(),
            tool_name: call.name.clone(),
            created_at: (self.host.clock)() / 1000,
            requires_confirmation: is(Gate::Confirmation),
            requires_user_input: is(Gate::UserInput),
            user_input_schema: is(Gate::UserInput).and_then(|_| fields()),
            external_execution_required: is(Gate::ExternalExecution),
            tool_args,
            ..ToolExecution::default()
        })
    }

    /// What a person has decided about a call; only once.
    pub(super) fn ruled(&mut self, call: &ToolCall) -> Option<(ToolExecution, Ruling)> {
        let Decision { verdict, tool, arguments_sha256: sha256 } = self.decisions.remove(&call.id)?;
        let ruling = match verdict {
            Verdict::Rejected => Ruling::Tell { text: rejection(tool.confirmation_note.as_deref()), error: true },
            Verdict::Executed => {
                let text = tool.result.as_deref().unwrap_or_default();
                let text = bounds::head_and_tail(text, bounds::RESULT_CHARS);
                Ruling::Tell { text, error: tool.tool_call_error == Some(true) }
            }
            Verdict::Approved if !is_for(call, &tool, &sha256) => {
                let text = "This call was not run: what was approved is not what was asked for.".to_owned();
                Ruling::Tell { text, error: true }
            }
            Verdict::Approved => self.approved(call, &tool),
        };
        Some((settled(tool), ruling))
    }

    fn approved(&self, call: &ToolCall, tool: &ToolExecution) -> Ruling {
        let arguments = Value::Object(tool.tool_args.clone()).to_string();
        let complete = ToolCall { arguments, ..call.clone() };
        match tools::read(&complete, &self.assignment.agent.tools) {
            Reading::Ready(prepared) => {
                Ruling::Run(Box::new(tools::Prepared { idempotent: false, once: true, ..*prepared }))
            }
            Reading::Malformed(why) => Ruling::Malformed(why),
            Reading::UnknownTool(text) => Ruling::Tell { text, error: true },
        }
    }

    /// The last entries of an attempt that waits for a person.
    pub(super) fn pause(&mut self, requirements: Vec<RunRequirement>) {
        let said = self.messages.iter().rfind(|message| message.role == Role::Assistant);
        let content = match said.map(|message| message.content.trim()) {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ => needs(&requirements),
        };
        self.journal.event(RunEvent::RunContentCompleted {});
        let event = RunEvent::paused(content.clone(), requirements.clone());
        self.journal.push(Some(event), Some(Record::Paused { content, requirements }));
    }
}

/// Whether a decision is about this call: the tool, and the arguments that the user did not give.
fn is_for(call: &ToolCall, tool: &ToolExecution, sha256: &str) -> bool {
    let given = |name: &String| tool.user_input_schema.iter().flatten().any(|field| field.name == *name);
    let without = |arguments: &Map<String, Value>| -> Map<String, Value> {
        arguments.iter().filter(|(name, _)| !given(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    tool.tool_name == call.name
        && arguments_sha256(&tool.tool_args) == sha256
        && tools::arguments(call).is_ok_and(|asked| without(&asked) == without(&tool.tool_args))
}

/// The call as it is recorded once it was decided about: it asks nobody any more.
fn settled(tool: ToolExecution) -> ToolExecution {
    let no = |flag: Option<bool>| flag.map(|_| false);
    ToolExecution {
        requires_confirmation: no(tool.requires_confirmation),
        requires_user_input: no(tool.requires_user_input),
        external_execution_required: no(tool.external_execution_required),
        result: None,
        ..tool
    }
}

fn rejection(note: Option<&str>) -> String {
    let why = note.map(str::trim).filter(|note| !note.is_empty());
    let why = why.map(|note| format!(" They said: {}", bounds::prefix(note, 2000))).unwrap_or_default();
    format!("The user rejected this call. It was not run.{why}")
}

/// What is wanted, in a sentence.
fn needs(requirements: &[RunRequirement]) -> String {
    let kinds = [
        (Gate::Confirmation, "confirmation"),
        (Gate::UserInput, "user input"),
        (Gate::ExternalExecution, "external execution"),
    ];
    let wanted = kinds.into_iter().filter(|(gate, _)| requirements.iter().any(|it| it.gate() == *gate));
    let wanted: Vec<&str> = wanted.map(|(_, name)| name).collect();
    format!("I have tools to execute, but I need {}.", wanted.join(" or "))
}

/// The arguments that the user gives, as forms ask for them.
fn user_fields(parameters: &Value, names: &[String], arguments: &Map<String, Value>) -> Vec<UserInputField> {
    let properties = parameters.get("properties");
    let field = |name: &String| {
        let property = properties?.get(name)?;
        let text = |key: &str| property.get(key).and_then(Value::as_str);
        Some(UserInputField {
            name: name.clone(),
            field_type: type_name(text("type").unwrap_or_default()).into(),
            description: text("description").map(str::to_owned),
            value: arguments.get(name).cloned(),
        })
    };
    names.iter().filter_map(field).collect()
}

/// A type of JSON Schema in AgentOS's words.
fn type_name(kind: &str) -> &'static str {
    match kind {
        "integer" => "int",
        "number" => "float",
        "boolean" => "bool",
        "array" => "list",
        "object" => "dict",
        _ => "str",
    }
}
