//! What the model is told: the system message and a conversation that every provider accepts.

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::message::{Message, Role};
use cadre_protocol::run::RunInput;
use serde_json::{Map, Value};

use super::resume;
use super::template;

/// The system message; none when the agent has nothing to say.
#[must_use]
pub fn system_message(
    agent: &AgentSnapshot,
    input: &RunInput,
    session_state: &Map<String, Value>,
    now_ms: u64,
) -> Option<Message> {
    let sources = [&input.dependencies, session_state];
    let fill = |text: &str| template::fill(text.trim(), &sources);
    let titled = |title: &str, text: &Option<String>| text.as_deref().map(|text| format!("{title}:\n{}", fill(text)));
    let parts = [
        agent.description.as_deref().map(fill),
        Some(fill(&agent.instructions)),
        titled("Expected output", &agent.expected_output),
        titled("Additional context", &agent.additional_context),
        agent.markdown.then(|| "Format your answers as Markdown.".to_owned()),
    ];
    let text = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n");
    // The same id in each attempt: the message is made anew each time and never stored.
    (!text.is_empty()).then(|| Message { id: "system".into(), ..Message::text(Role::System, text, now_ms) })
}

/// The messages of a request: instructions, earlier turns, this run.
#[must_use]
pub fn conversation(system: Option<&Message>, history: &[Message], current: &[Message]) -> Vec<Message> {
    let mut messages: Vec<Message> = system.cloned().into_iter().collect();
    messages.extend(closed(history));
    messages.extend_from_slice(current);
    messages
}

/// Earlier turns without gaps: a turn that was cut off may have calls without results, and results whose calls fell
/// out of the window; providers refuse both.
fn closed(history: &[Message]) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::with_capacity(history.len());
    for (at, message) in history.iter().enumerate() {
        match message.role {
            Role::System => {}
            Role::Tool if !is_asked_for(message, &messages) => {}
            Role::User | Role::Tool => messages.push(message.clone()),
            Role::Assistant => {
                messages.push(message.clone());
                let after = history.get(at + 1..).unwrap_or_default();
                let results = after.iter().take_while(|next| next.role == Role::Tool).count();
                for call in resume::unanswered(message, after.get(..results).unwrap_or_default()) {
                    let text = "There is no result: the turn ended before this call did.";
                    messages.push(Message::tool_result(call, text, true, message.created_at_ms));
                }
            }
        }
    }
    messages
}

fn is_asked_for(result: &Message, before: &[Message]) -> bool {
    let reply = before.iter().rev().find(|message| message.role != Role::Tool);
    reply.is_some_and(|reply| {
        reply.tool_calls.iter().any(|call| Some(call.id.as_str()) == result.tool_call_id.as_deref())
    })
}

#[cfg(test)]
mod tests {
    use cadre_protocol::message::ToolCall;

    use super::*;
    use crate::engine::fakes;

    #[test]
    fn the_system_message_has_all_that_the_author_wrote() {
        let mut agent = fakes::agent();
        agent.description = Some("You help {name}.".into());
        agent.expected_output = Some("One line.".into());
        agent.additional_context = Some("It is {weather}, {unknown}.".into());
        agent.markdown = true;
        let input =
            RunInput { dependencies: Map::from_iter([("name".to_owned(), Value::from("Ada"))]), ..RunInput::default() };
        let state = Map::from_iter([("weather".to_owned(), Value::from("cold"))]);
        assert_eq!(
            system_message(&agent, &input, &state, 0).unwrap().content,
            "You help Ada.\n\nBe brief.\n\nExpected output:\nOne line.\n\nAdditional context:\nIt is cold, {unknown}.\n\n\
             Format your answers as Markdown."
        );
    }

    #[test]
    fn a_turn_that_was_cut_off_does_not_spoil_the_next() {
        let call = |id: &str| ToolCall { id: id.into(), name: "shell".into(), arguments: "{}".into() };
        let asks = Message { tool_calls: vec![call("a"), call("b")], ..Message::text(Role::Assistant, "", 0) };
        let history = [
            Message::tool_result(&call("z"), "its call fell out of the window", false, 0),
            Message::text(Role::User, "one", 0),
            asks,
            Message::tool_result(&call("a"), "ok", false, 0),
            Message::text(Role::User, "two", 0),
        ];
        let seen: Vec<_> =
            conversation(None, &history, &[]).into_iter().map(|message| (message.role, message.tool_call_id)).collect();
        let expected = [
            (Role::User, None),
            (Role::Assistant, None),
            (Role::Tool, Some("b".to_owned())),
            (Role::Tool, Some("a".to_owned())),
            (Role::User, None),
        ];
        assert_eq!(seen, expected);
    }
}
