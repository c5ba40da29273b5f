//! What goes back to a provider unchanged: signed or encrypted reasoning, in its place among text and calls.
//!
//! A provider checks that its own pieces come back in the order in which it sent them. `provider_data` keeps the opaque
//! pieces and, for text and calls, only their place: their content is the message's own, so that nothing is stored
//! twice and nothing can disagree. It comes back from an engine, which may be compromised: each provider accepts only
//! opaque pieces of its own few shapes, and data that does not fit its message is dropped.

use cadre_protocol::message::{Message, ToolCall};
use cadre_protocol::nesting;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Api;

/// A place in an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Slot {
    /// A piece that only the provider understands.
    Opaque(Value),
    /// The next bytes of the content, and the provider's mark on them.
    Text { bytes: usize, mark: Option<String> },
    /// The next tool call.
    Call,
}

#[derive(Serialize, Deserialize)]
struct Carried {
    api: String,
    slots: Vec<Slot>,
}

/// A piece of an assistant message.
#[derive(Debug, PartialEq)]
pub(super) enum Part<'a> {
    Opaque(Value),
    Text(&'a str, Option<String>),
    Call(&'a ToolCall),
}

/// `provider_data` of an answer; nothing if the answer can be rebuilt without, or if it is nested too deep to be kept.
pub(super) fn pack(api: Api, slots: Vec<Slot>) -> Option<Value> {
    let needed = slots.iter().any(|slot| match slot {
        Slot::Opaque(_) => true,
        Slot::Text { mark, .. } => mark.is_some(),
        Slot::Call => false,
    });
    let carried = Carried { api: api.as_str().to_owned(), slots };
    needed.then(|| serde_json::to_value(carried).ok()).flatten().filter(nesting::fits)
}

/// The pieces of an assistant message, in order.
pub(super) fn parts(api: Api, message: &Message) -> Vec<Part<'_>> {
    unpack(api, message).unwrap_or_else(|| {
        let text = (!message.content.is_empty()).then_some(Part::Text(&message.content, None));
        text.into_iter().chain(message.tool_calls.iter().map(Part::Call)).collect()
    })
}

/// The pieces after `provider_data`, if that is of this API and fits the message exactly.
fn unpack(api: Api, message: &Message) -> Option<Vec<Part<'_>>> {
    let carried = Carried::deserialize(message.provider_data.as_ref()?).ok()?;
    if carried.api != api.as_str() {
        return None;
    }
    let mut text = message.content.as_str();
    let mut calls = message.tool_calls.iter();
    let mut parts = Vec::with_capacity(carried.slots.len());
    for slot in carried.slots {
        parts.push(match slot {
            Slot::Opaque(value) => Part::Opaque(value),
            Slot::Text { bytes, mark } => {
                let (piece, rest) = text.split_at_checked(bytes)?;
                text = rest;
                Part::Text(piece, mark)
            }
            Slot::Call => Part::Call(calls.next()?),
        });
    }
    (text.is_empty() && calls.next().is_none()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use cadre_protocol::message::Role;
    use serde_json::json;

    use super::*;

    fn message(data: Option<Value>) -> Message {
        let call = ToolCall { id: "c".into(), name: "n".into(), arguments: "{}".into() };
        Message { tool_calls: vec![call], provider_data: data, ..Message::text(Role::Assistant, "añb", 0) }
    }

    #[test]
    fn order_survives() {
        let slots = vec![
            Slot::Text { bytes: 3, mark: None },
            Slot::Opaque(json!({"x": 1})),
            Slot::Call,
            Slot::Text { bytes: 1, mark: Some("m".into()) },
        ];
        let message = message(pack(Api::Messages, slots));
        let call = &message.tool_calls[0];
        let expected = vec![
            Part::Text("añ", None),
            Part::Opaque(json!({"x": 1})),
            Part::Call(call),
            Part::Text("b", Some("m".into())),
        ];
        assert_eq!(parts(Api::Messages, &message), expected);
    }

    #[test]
    fn data_that_does_not_fit_is_dropped() {
        let opaque = Slot::Opaque(json!(1));
        let text = |bytes| Slot::Text { bytes, mark: None };
        let whole = vec![opaque.clone(), text(4), Slot::Call];
        let misfits = [
            pack(Api::Responses, whole),
            pack(Api::Messages, vec![opaque.clone(), text(2), text(2), Slot::Call]),
            pack(Api::Messages, vec![opaque.clone(), text(4)]),
            pack(Api::Messages, vec![opaque.clone(), text(usize::MAX), Slot::Call]),
            pack(Api::Messages, vec![opaque, text(4), Slot::Call, Slot::Call]),
            Some(json!("nonsense")),
            None,
        ];
        for data in misfits {
            let message = message(data);
            let expected = vec![Part::Text("añb", None), Part::Call(&message.tool_calls[0])];
            assert_eq!(parts(Api::Messages, &message), expected, "{:?}", message.provider_data);
        }
    }

    #[test]
    fn plain_answers_carry_nothing() {
        assert_eq!(pack(Api::Messages, vec![Slot::Text { bytes: 4, mark: None }, Slot::Call]), None);
    }

    #[test]
    fn what_is_nested_too_deep_is_not_kept() {
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(pack(Api::Messages, vec![Slot::Opaque(serde_json::from_str(&deep).unwrap())]), None);
    }
}
