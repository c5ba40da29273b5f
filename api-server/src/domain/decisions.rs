//! What people answer about the calls that a paused run waits for: compared with what was asked, and merged. Pure.
//!
//! Answers are merged, never replaced: what was decided stands, and what nobody has answered stays open.

use cadre_protocol::message::Message;
use cadre_protocol::requirement::{Gate, RunRequirement, UserInputField};
use cadre_protocol::tool::ToolExecution;
use cadre_store::approvals::ApprovalRow;
use serde_json::{Map, Value};

/// An answer about one call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Id of the requirement.
    pub requirement_id: Option<String>,
    /// Id of the call.
    pub call_id: Option<String>,
    /// The tool that the answer is about.
    pub tool_name: Option<String>,
    /// The arguments that the answer is about.
    pub arguments: Option<Map<String, Value>>,
    /// Whether the call may run.
    pub confirmed: Option<bool>,
    /// A word on that.
    pub note: Option<String>,
    /// Whether the user has said all that there is to say.
    pub answered: Option<bool>,
    /// Values that the user gives, by the names of their arguments.
    pub values: Vec<(String, Value)>,
    /// What came of it at the caller.
    pub result: Option<String>,
    /// Whether that is a failure.
    pub failed: Option<bool>,
}

/// Why answers can't be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// They make no sense.
    Wrong(String),
    /// Something else was decided before.
    Decided(String),
}

/// Calls that changed, with the version in which they were read.
pub type Changes = Vec<(u64, RunRequirement)>;

/// What answers change about the calls of a run. `messages` are the run's: clients send its other calls back as well.
///
/// # Errors
/// When an answer is about another call than the one that waits, or a decision would be taken back.
pub fn merge(rows: &[ApprovalRow], messages: &[Message], answers: &[Answer]) -> Result<Changes, Refusal> {
    let mut changes: Changes = Vec::new();
    for answer in answers {
        let Some(row) = find(rows, answer) else {
            known(messages, answer)?;
            continue;
        };
        is_about(answer, &row.requirement)?;
        let told = apply(&row.requirement, answer)?;
        if !row.is_open {
            stands(&row.requirement, answer, &told)?;
        } else if told != row.requirement {
            changes.retain(|(_, other)| other.id != told.id);
            changes.push((row.version, told));
        }
    }
    Ok(changes)
}

/// Whether answers say what was decided, and nothing else; then the number of the entry that asked for them.
#[must_use]
pub fn repeated(rows: &[ApprovalRow], messages: &[Message], answers: &[Answer]) -> Option<u64> {
    let changes = merge(rows, messages, answers).ok()?;
    let asked = answers.iter().filter(|answer| is_said(answer)).filter_map(|answer| find(rows, answer));
    asked.map(|row| row.position).max().filter(|_| changes.is_empty())
}

fn find<'a>(rows: &'a [ApprovalRow], answer: &Answer) -> Option<&'a ApprovalRow> {
    let of_id = |row: &&ApprovalRow| answer.requirement_id.as_ref() == Some(&row.requirement.id);
    let of_call = |row: &&ApprovalRow| answer.call_id.as_deref().is_some_and(|id| row.requirement.is_of(id));
    rows.iter().find(of_call).or_else(|| rows.iter().find(of_id).filter(|_| answer.call_id.is_none()))
}

/// A call that never waited may be sent back, one that does not exist may not.
fn known(messages: &[Message], answer: &Answer) -> Result<(), Refusal> {
    let id = answer.call_id.as_deref().or(answer.requirement_id.as_deref()).unwrap_or_default();
    let calls = messages.iter().flat_map(|message| &message.tool_calls);
    if answer.call_id.is_some() && calls.map(|call| call.id.as_str()).any(|call| call == id) {
        return Ok(());
    }
    Err(Refusal::Wrong(format!("The run has no tool call {id:?}")))
}

/// An answer counts for the call that the person has seen.
fn is_about(answer: &Answer, asked: &RunRequirement) -> Result<(), Refusal> {
    let tool = &asked.tool_execution;
    let changed = |what: &str| {
        let id = &tool.tool_call_id;
        Err(Refusal::Wrong(format!(
            "The {what} of tool call {id:?} are not those that wait: get the run and answer that"
        )))
    };
    if answer.tool_name.as_ref().is_some_and(|name| *name != tool.tool_name) {
        return changed("name and arguments");
    }
    let given = |name: &str| tool.user_input_schema.iter().flatten().any(|field| field.name == name);
    let fixed = |arguments: &Map<String, Value>| -> Vec<(String, Value)> {
        arguments.iter().filter(|(name, _)| !given(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    match &answer.arguments {
        Some(arguments) if fixed(arguments) != fixed(&tool.tool_args) => changed("arguments"),
        _ => Ok(()),
    }
}

fn is_said(answer: &Answer) -> bool {
    answer.confirmed.is_some() || answer.answered == Some(true) || !answer.values.is_empty() || answer.result.is_some()
}

/// The call with what the answer says.
fn apply(asked: &RunRequirement, answer: &Answer) -> Result<RunRequirement, Refusal> {
    let mut told = asked.clone();
    let confirms = match asked.gate() {
        Gate::Confirmation => answer.confirmed,
        // A yes alone gives no values and no result; a no ends the matter.
        Gate::UserInput | Gate::ExternalExecution => answer.confirmed.filter(|yes| !yes),
    };
    if let Some(yes) = confirms {
        let note = answer.note.clone();
        (told.confirmation, told.confirmation_note) = (Some(yes), note.clone());
        (told.tool_execution.confirmed, told.tool_execution.confirmation_note) = (Some(yes), note);
        return Ok(told);
    }
    match asked.gate() {
        Gate::Confirmation => {}
        Gate::UserInput => fill(&mut told, answer)?,
        Gate::ExternalExecution => {
            if let Some(result) = &answer.result {
                told.external_execution_result = Some(result.clone());
                told.tool_execution.result = Some(result.clone());
                told.tool_execution.tool_call_error = Some(answer.failed == Some(true));
            }
        }
    }
    Ok(told)
}

/// Puts values into the call; it is complete once each field has one, or the user says so.
fn fill(told: &mut RunRequirement, answer: &Answer) -> Result<(), Refusal> {
    let tool = &mut told.tool_execution;
    let mut fields = tool.user_input_schema.clone().unwrap_or_default();
    let before = fields.clone();
    for (name, value) in answer.values.iter().filter(|(_, value)| !value.is_null()) {
        let field = fields.iter_mut().find(|field| field.name == *name);
        let field = field.ok_or_else(|| Refusal::Wrong(format!("{} asks for no value {name:?}", tool.tool_name)))?;
        fits(field, value)?;
        field.value = Some(value.clone());
    }
    let is_complete = fields.iter().all(|field| field.value.as_ref().is_some_and(|value| !value.is_null()));
    if answer.answered == Some(true) || (is_complete && fields != before) {
        tool.answered = Some(true);
        complete(tool, &fields);
    }
    tool.user_input_schema = Some(fields.clone());
    told.user_input_schema = Some(fields);
    Ok(())
}

fn complete(tool: &mut ToolExecution, fields: &[UserInputField]) {
    for UserInputField { name, value, .. } in fields {
        match value {
            Some(value) if !value.is_null() => tool.tool_args.insert(name.clone(), value.clone()),
            _ => tool.tool_args.remove(name),
        };
    }
}

fn fits(field: &UserInputField, value: &Value) -> Result<(), Refusal> {
    let good = match field.field_type.as_str() {
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        "bool" => value.is_boolean(),
        "list" => value.is_array(),
        "dict" => value.is_object(),
        _ => value.is_string(),
    };
    if good && cadre_protocol::nesting::fits(value) {
        return Ok(());
    }
    Err(Refusal::Wrong(format!("The value of {:?} must be of type {}", field.name, field.field_type)))
}

/// A decision stands: it may be repeated, but not changed.
fn stands(decided: &RunRequirement, answer: &Answer, told: &RunRequirement) -> Result<(), Refusal> {
    let (old, new) = (&decided.tool_execution, &told.tool_execution);
    let same = old.confirmed == new.confirmed
        && old.user_input_schema == new.user_input_schema
        && old.result == new.result
        && answer.confirmed.is_none_or(|yes| yes == (old.confirmed != Some(false)));
    if same || !is_said(answer) {
        return Ok(());
    }
    Err(Refusal::Decided(format!("tool call {:?} was decided before", old.tool_call_id)))
}

#[cfg(test)]
#[path = "decisions_tests.rs"]
mod tests;
