//! Where a conversation may be cut. Pure.
//!
//! A boundary is a number of messages that are kept. A cut must not part a call from its result: models refuse such a
//! conversation.

use cadre_protocol::message::{Message, Role};

/// From where a run is continued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContinueFrom {
    /// Its last message.
    #[default]
    End,
    /// The user's last message.
    LastUser,
    /// This many messages.
    Index(i64),
}

/// The largest boundary at or before the wanted one that keeps calls and results together. The end is always one.
#[must_use]
pub fn snap(messages: &[Message], wanted: usize) -> usize {
    if wanted >= messages.len() {
        return messages.len();
    }
    let is_cut = |at: &usize| whole_at(messages, *at).is_none_or(|end| end > wanted);
    (0..wanted).find(is_cut).unwrap_or(wanted)
}

/// All boundaries, the end last.
#[must_use]
pub fn all(messages: &[Message]) -> Vec<usize> {
    let mut whole = 0;
    let is_boundary = |at: &usize| {
        whole = whole.max(whole_at(messages, at - 1).unwrap_or(usize::MAX));
        whole <= *at || *at == messages.len()
    };
    (1..=messages.len()).filter(is_boundary).collect()
}

/// Where a message and the results of its calls have all been said; none while one is open.
fn whole_at(messages: &[Message], at: usize) -> Option<usize> {
    let calls = messages.get(at).map(|message| message.tool_calls.as_slice()).unwrap_or_default();
    let after = messages.get(at + 1..).unwrap_or_default();
    calls.iter().try_fold(at + 1, |whole, call| {
        let mut results = after.iter().take_while(|message| message.role != Role::Assistant);
        let result = results.position(|message| message.tool_call_id.as_deref() == Some(call.id.as_str()))?;
        Some(whole.max(at + 1 + result + 1))
    })
}

/// The boundary behind the user's last message.
#[must_use]
pub fn last_user(messages: &[Message]) -> Option<usize> {
    messages.iter().rposition(|message| message.role == Role::User).map(|at| at + 1)
}

/// The boundary before the last answer: calls and results that came before it are kept.
#[must_use]
pub fn before_answer(messages: &[Message]) -> Option<usize> {
    let is_answer = |message: &Message| message.role == Role::Assistant && message.tool_calls.is_empty();
    messages.iter().rposition(|message| !is_answer(message)).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use cadre_protocol::message::ToolCall;

    use super::*;

    fn call(id: &str) -> ToolCall {
        ToolCall { id: id.into(), name: "shell".into(), arguments: "{}".into() }
    }

    /// user, two calls, their results, one call, its result, answer.
    fn conversation() -> Vec<Message> {
        let asks = |ids: &[&str]| Message {
            tool_calls: ids.iter().map(|id| call(id)).collect(),
            ..Message::text(Role::Assistant, "", 0)
        };
        let result = |id: &str| Message::tool_result(&call(id), "ok", false, 0);
        vec![
            Message::text(Role::User, "go", 0),
            asks(&["a", "b"]),
            result("a"),
            result("b"),
            asks(&["c"]),
            result("c"),
            Message::text(Role::Assistant, "done", 0),
        ]
    }

    #[test]
    fn a_cut_never_parts_a_call_from_its_result() {
        let messages = conversation();
        let snapped: Vec<_> = (0..=9).map(|at| snap(&messages, at)).collect();
        assert_eq!(snapped, [0, 1, 1, 1, 4, 4, 6, 7, 7, 7]);
        assert_eq!(all(&messages), [1, 4, 6, 7]);
        assert!(all(&[]).is_empty());
    }

    #[test]
    fn an_open_call_is_no_place_to_stop_but_the_end_is() {
        let messages = &conversation()[..3];
        assert_eq!(all(messages), [1, 3], "of a run under way");
        assert_eq!(snap(messages, 2), 1);
    }

    #[test]
    fn an_answer_is_given_anew_from_what_came_before_it() {
        let messages = conversation();
        assert_eq!((before_answer(&messages), last_user(&messages)), (Some(6), Some(1)));
        assert_eq!(before_answer(&messages[..6]), Some(6), "there was none yet");
        assert_eq!(before_answer(&messages[..2]), Some(2), "what becomes of a call is decided by who goes on");
        let spoken = [Message::text(Role::Assistant, "hello", 0)];
        assert_eq!((before_answer(&spoken), last_user(&spoken)), (None, None));
    }
}
