//! The next step of a run, decided from what is recorded and nothing else. A new run and one that another engine
//! began go through the same decision, so that going on after a crash is no special case.

use cadre_protocol::agent::OnUnknownOutcome;
use cadre_protocol::journal::ToolCallState;
use cadre_protocol::message::{Message, Role, ToolCall};
use cadre_protocol::tool::ToolExecution;

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Ask the model.
    AskModel,
    /// Work through the calls of the last reply, in order.
    RunTools(Vec<Plan>),
    /// The last reply is the answer.
    Finish,
}

/// What to do with one call that the model does not have a result of.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// It never started.
    Start(ToolCall),
    /// It started and has no result; running it once more is allowed.
    Again(ToolCall),
    /// It has a result that only the conversation lacks.
    Take(ToolCall, Box<ToolExecution>),
    /// It started, and whether it took effect nobody knows.
    Unknown(ToolCall, Box<ToolExecution>),
}

/// Decides. `messages` are this run's, `known` the tool calls recorded by earlier attempts.
#[must_use]
pub fn next(messages: &[Message], known: &[ToolCallState], policy: OnUnknownOutcome) -> Step {
    let Some(reply_at) = messages.iter().rposition(|message| message.role == Role::Assistant) else {
        return Step::AskModel;
    };
    let (Some(reply), after) = (messages.get(reply_at), messages.get(reply_at + 1..).unwrap_or_default()) else {
        return Step::AskModel;
    };
    if reply.tool_calls.is_empty() {
        return if after.is_empty() { Step::Finish } else { Step::AskModel };
    }
    let plans: Vec<Plan> = unanswered(reply, after).map(|call| plan(call, known, policy)).collect();
    if plans.is_empty() { Step::AskModel } else { Step::RunTools(plans) }
}

/// Calls of a reply that no later message answers.
pub fn unanswered<'a>(reply: &'a Message, after: &'a [Message]) -> impl Iterator<Item = &'a ToolCall> {
    reply
        .tool_calls
        .iter()
        .filter(|call| !after.iter().any(|message| message.tool_call_id.as_deref() == Some(call.id.as_str())))
}

fn plan(call: &ToolCall, known: &[ToolCallState], policy: OnUnknownOutcome) -> Plan {
    let mut states = known.iter().filter(|state| state.tool.tool_call_id == call.id);
    let Some(first) = states.next() else {
        return Plan::Start(call.clone());
    };
    let state = if first.finished { first } else { states.find(|state| state.finished).unwrap_or(first) };
    if state.finished {
        Plan::Take(call.clone(), Box::new(state.tool.clone()))
    } else if state.idempotent || policy == OnUnknownOutcome::Retry {
        Plan::Again(call.clone())
    } else {
        Plan::Unknown(call.clone(), Box::new(state.tool.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> ToolCall {
        ToolCall { id: id.into(), name: "shell".into(), arguments: "{}".into() }
    }

    fn state(id: &str, idempotent: bool, finished: bool) -> ToolCallState {
        let tool = ToolExecution { tool_call_id: id.into(), ..ToolExecution::default() };
        ToolCallState { tool, idempotent, finished }
    }

    fn tool(id: &str) -> Box<ToolExecution> {
        Box::new(state(id, false, false).tool)
    }

    #[test]
    fn every_point_of_a_turn_has_one_next_step() {
        let user = Message::text(Role::User, "hi", 0);
        let asks = Message { tool_calls: vec![call("a"), call("b")], ..Message::text(Role::Assistant, "", 0) };
        let answer = |id: &str| Message::tool_result(&call(id), "ok", false, 0);
        let says = Message::text(Role::Assistant, "done", 0);
        let u = || user.clone();
        let r = || asks.clone();
        let report = OnUnknownOutcome::Report;
        let start = |id: &str| Plan::Start(call(id));

        type Row = (&'static str, Vec<Message>, Vec<ToolCallState>, OnUnknownOutcome, Step);
        let table: Vec<Row> = vec![
            ("nothing yet", vec![], vec![], report, Step::AskModel),
            ("asked", vec![u()], vec![], report, Step::AskModel),
            ("answered", vec![u(), says.clone()], vec![], report, Step::Finish),
            ("told something since", vec![u(), says, u()], vec![], report, Step::AskModel),
            ("none started", vec![u(), r()], vec![], report, Step::RunTools(vec![start("a"), start("b")])),
            (
                "first started, harmless",
                vec![u(), r()],
                vec![state("a", true, false)],
                report,
                Step::RunTools(vec![Plan::Again(call("a")), start("b")]),
            ),
            (
                "first started, told to repeat",
                vec![u(), r()],
                vec![state("a", false, false)],
                OnUnknownOutcome::Retry,
                Step::RunTools(vec![Plan::Again(call("a")), start("b")]),
            ),
            (
                "first started, not to be repeated",
                vec![u(), r()],
                vec![state("a", false, false)],
                report,
                Step::RunTools(vec![Plan::Unknown(call("a"), tool("a")), start("b")]),
            ),
            (
                "first finished, not yet told",
                vec![u(), r()],
                vec![state("a", false, true)],
                report,
                Step::RunTools(vec![Plan::Take(call("a"), tool("a")), start("b")]),
            ),
            (
                "first told, second started",
                vec![u(), r(), answer("a")],
                vec![state("a", false, true), state("b", false, false)],
                report,
                Step::RunTools(vec![Plan::Unknown(call("b"), tool("b"))]),
            ),
            (
                "both told",
                vec![u(), r(), answer("a"), answer("b")],
                vec![state("a", false, true), state("b", false, true)],
                report,
                Step::AskModel,
            ),
            (
                "started twice, finished once",
                vec![u(), r(), answer("b")],
                vec![state("a", true, false), state("a", true, true)],
                report,
                Step::RunTools(vec![Plan::Take(call("a"), tool("a"))]),
            ),
        ];
        for (name, messages, known, policy, expected) in table {
            assert_eq!(next(&messages, &known, policy), expected, "{name}");
        }
    }
}
