//! All three assemblers on recorded streams, cut and damaged in every way.

use cadre_protocol::model::{FinishReason, ModelDelta, ModelError, ModelErrorCategory, Usage};
use proptest::prelude::*;
use serde_json::json;
use tokio::time::Instant;

use super::stream::Body;
use super::{Answer, Sink, assembler};
use crate::config::{Api, Provider};

const MESSAGES: &str = include_str!("../../tests/fixtures/messages.sse");
const RESPONSES: &str = include_str!("../../tests/fixtures/responses.sse");
const CHAT: &str = include_str!("../../tests/fixtures/chat.sse");
const ALL: [(Api, &str); 3] = [(Api::Messages, MESSAGES), (Api::Responses, RESPONSES), (Api::ChatCompletions, CHAT)];

/// The answer, and all the text and reasoning that was delivered.
fn assemble(api: Api, json: bool, chunks: &[&[u8]]) -> (Result<Answer, ModelError>, String, String) {
    let (mut text, mut reasoning) = (String::new(), String::new());
    let mut deltas = |delta| match delta {
        ModelDelta::Text(piece) => text.push_str(&piece),
        ModelDelta::Reasoning(piece) => reasoning.push_str(&piece),
    };
    let mut sink = Sink::new(&mut deltas, Instant::now());
    let mut body = Body::new(json, assembler(api, Provider::OpenAICompatible));
    let fed = chunks.iter().try_for_each(|chunk| body.push(chunk, &mut sink));
    let answer = fed.and_then(|()| body.finish(&mut sink));
    (answer, text, reasoning)
}

fn chat(events: &[serde_json::Value]) -> Result<Answer, ModelError> {
    let stream: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    assemble(Api::ChatCompletions, false, &[stream.as_bytes()]).0
}

fn delta(delta: serde_json::Value) -> serde_json::Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn end() -> serde_json::Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
}

#[test]
fn recorded_streams_become_answers() {
    for (api, stream) in ALL {
        let (answer, text, reasoning) = assemble(api, false, &[stream.as_bytes()]);
        let answer = answer.unwrap();
        assert_eq!(answer.finish, FinishReason::ToolCalls);
        assert_eq!(answer.text, text);
        assert_eq!(answer.reasoning.unwrap(), reasoning);
        assert!(!reasoning.is_empty() && text.starts_with("Voilà, "));
        assert_eq!(answer.calls[0].name, "shell");
        assert_eq!(answer.calls[0].arguments, r#"{"command":"ls"}"#);
        assert!(answer.calls.get(1).is_none_or(|call| call.name == "now" && call.arguments == "{}"));
        let Usage { input_tokens, output_tokens, cache_read_tokens, .. } = answer.usage;
        assert_eq!((input_tokens, output_tokens, cache_read_tokens), (60, 25, 30));
    }
}

#[test]
fn streams_that_stop_early_are_errors() {
    for (api, stream) in ALL {
        for fraction in [0, 1, 2, 3] {
            let (head, _) = stream.as_bytes().split_at(stream.len() * fraction / 4);
            let error = assemble(api, false, &[head]).0.unwrap_err();
            assert_eq!(error.category, ModelErrorCategory::Network, "{api:?} {fraction}/4");
        }
    }
}

#[test]
fn a_missing_done_is_forgiven_after_the_finish_reason() {
    let stream = CHAT.replace("data: [DONE]\n\n", "");
    assert!(assemble(Api::ChatCompletions, false, &[stream.as_bytes()]).0.is_ok());
    assert!(chat(&[delta(json!({"content": "hi"})), end()]).is_ok());
}

#[test]
fn fragments_of_careless_servers_are_put_together() {
    let fragment = |value| delta(json!({"tool_calls": [value]}));
    let cases = [
        // No index, the id only in the first fragment.
        vec![
            fragment(json!({"id": "a", "function": {"name": "x", "arguments": "{\"k\""}})),
            fragment(json!({"function": {"arguments": ":1}"}})),
            fragment(json!({"id": "b", "function": {"name": "y", "arguments": "{}"}})),
        ],
        // One index for all calls.
        vec![
            fragment(json!({"index": 0, "id": "a", "function": {"name": "x", "arguments": "{\"k\":1}"}})),
            fragment(json!({"index": 0, "id": "b", "function": {"name": "y", "arguments": "{}"}})),
        ],
        // Id and name in every fragment, arguments as an object, null for the rest.
        vec![
            fragment(json!({"index": 0, "id": "a", "function": {"name": "x", "arguments": "{\"k\""}})),
            fragment(json!({"index": 0, "id": "a", "function": {"name": "x", "arguments": ":1}"}})),
            fragment(json!({"index": 1, "id": "b", "function": {"name": "y", "arguments": {}}})),
            fragment(json!({"index": 1, "id": null, "function": {"name": null, "arguments": null}})),
        ],
        // Neither index nor id: names tell the calls apart.
        vec![
            fragment(json!({"function": {"name": "x", "arguments": "{\"k\""}})),
            fragment(json!({"function": {"arguments": ":1}"}})),
            fragment(json!({"function": {"name": "y", "arguments": "{}"}})),
        ],
        // Fragments of two calls in turns.
        vec![
            fragment(json!({"index": 0, "id": "a", "function": {"name": "x", "arguments": "{\"k\""}})),
            fragment(json!({"index": 1, "id": "b", "function": {"name": "y", "arguments": "{"}})),
            fragment(json!({"index": 0, "function": {"arguments": ":1}"}})),
            fragment(json!({"index": 1, "function": {"arguments": "}"}})),
        ],
    ];
    for mut events in cases {
        events.push(end());
        let answer = chat(&events).unwrap();
        let calls: Vec<_> = answer.calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!(calls, [("x", "{\"k\":1}"), ("y", "{}")], "{events:?}");
        let ids: Vec<_> = answer.calls.iter().map(|call| call.id.as_str()).collect();
        assert!(ids == ["a", "b"] || ids == ["", ""], "{ids:?}");
        assert_eq!(answer.finish, FinishReason::ToolCalls);
    }
}

#[test]
fn answers_that_are_not_streamed_are_read() {
    let message = json!({"role": "assistant", "content": "hi", "tool_calls": null});
    let document = json!({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2}});
    let (answer, text, _) = assemble(Api::ChatCompletions, true, &[document.to_string().as_bytes()]);
    assert_eq!((answer.unwrap().text.as_str(), text.as_str()), ("hi", "hi"));

    let item = json!({"type": "message", "content": [{"type": "output_text", "text": "hi"}]});
    let document = json!({"object": "response", "status": "completed", "model": "m", "output": [item],
        "usage": {"input_tokens": 1, "output_tokens": 2}});
    let (answer, text, _) = assemble(Api::Responses, true, &[document.to_string().as_bytes()]);
    assert_eq!((answer.unwrap().text.as_str(), text.as_str()), ("hi", "hi"));
}

#[test]
fn errors_in_mid_stream_are_told() {
    let cases = [
        (
            Api::Messages,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            ModelErrorCategory::Provider,
        ),
        (
            Api::Responses,
            r#"{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"slow"}}}"#,
            ModelErrorCategory::RateLimit,
        ),
        (
            Api::Responses,
            r#"{"type":"error","code":"context_length_exceeded","message":"full"}"#,
            ModelErrorCategory::ContextWindow,
        ),
        (Api::ChatCompletions, r#"{"error":{"message":"boom","code":500}}"#, ModelErrorCategory::Provider),
        (Api::ChatCompletions, "this is no JSON", ModelErrorCategory::Protocol),
    ];
    for (api, event, expected) in cases {
        let stream = format!("data: {event}\n\n");
        assert_eq!(assemble(api, false, &[stream.as_bytes()]).0.unwrap_err().category, expected, "{event}");
    }
}

#[test]
fn reasons_to_stop_are_told_apart() {
    let chat_end = |reason: &str| json!({"choices": [{"delta": {"content": "x"}, "finish_reason": reason}]});
    for (reason, expected) in [
        ("stop", FinishReason::Stop),
        ("length", FinishReason::Length),
        ("content_filter", FinishReason::ContentFilter),
        ("eos", FinishReason::Stop),
    ] {
        assert_eq!(chat(&[chat_end(reason)]).unwrap().finish, expected, "{reason}");
    }
    for (reason, expected) in [
        ("end_turn", FinishReason::Stop),
        ("max_tokens", FinishReason::Length),
        ("refusal", FinishReason::ContentFilter),
    ] {
        let stream = MESSAGES.replace(r#""stop_reason":"tool_use""#, &format!(r#""stop_reason":"{reason}""#));
        let answer = assemble(Api::Messages, false, &[stream.as_bytes()]).0.unwrap();
        let expected = if reason == "end_turn" { FinishReason::ToolCalls } else { expected };
        assert_eq!(answer.finish, expected, "{reason}");
    }
    let response = r#"{"incomplete_details":{"reason":"max_output_tokens"},"output":[]}"#;
    let stream = format!("data: {{\"type\":\"response.incomplete\",\"response\":{response}}}\n\n");
    let answer = assemble(Api::Responses, false, &[stream.as_bytes()]).0.unwrap();
    assert_eq!(answer.finish, FinishReason::Length);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_may_be_split_anywhere(which in 0_usize..3, cuts in proptest::collection::vec(0_usize..8_000, 0..40)) {
        let (api, stream) = ALL[which];
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
        cuts.sort_unstable();
        let mut chunks = Vec::new();
        let mut from = 0;
        for cut in cuts {
            chunks.push(&stream.as_bytes()[from..cut]);
            from = cut;
        }
        chunks.push(&stream.as_bytes()[from..]);
        let whole = assemble(api, false, &[stream.as_bytes()]);
        let split = assemble(api, false, &chunks);
        prop_assert_eq!(split, whole);
    }

    #[test]
    fn damaged_streams_never_panic_and_deliver_what_they_return(
        which in 0_usize..3,
        order in proptest::collection::vec(0_usize..40, 0..60),
        damage in proptest::option::of((0_usize..8_000, any::<u8>())),
    ) {
        let (api, stream) = ALL[which];
        let events: Vec<&str> = stream.split_inclusive("\n\n").collect();
        let shuffled: String = order.iter().map(|at| events[at % events.len()]).collect();
        let mut bytes = shuffled.into_bytes();
        if let Some((at, byte)) = damage && !bytes.is_empty() {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let (answer, text, reasoning) = assemble(api, false, &[&bytes]);
        if let Ok(answer) = answer {
            prop_assert_eq!(answer.text.len(), text.len());
            prop_assert_eq!(answer.reasoning.unwrap_or_default().len(), reasoning.len());
        }
    }

    #[test]
    fn arbitrary_events_never_panic(which in 0_usize..3, lines in proptest::collection::vec(any_event(), 0..12)) {
        let stream: String = lines.iter().map(|line| format!("data: {line}\n\n")).collect();
        let _ = assemble(ALL[which].0, false, &[stream.as_bytes()]);
        let _ = assemble(ALL[which].0, true, &[stream.as_bytes()]);
    }
}

/// JSON of the right words in the wrong places.
fn any_event() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("type"),
        Just("index"),
        Just("output_index"),
        Just("delta"),
        Just("item"),
        Just("response"),
        Just("choices"),
        Just("tool_calls"),
        Just("function"),
        Just("arguments"),
        Just("content"),
        Just("output"),
        Just("content_block_start"),
        Just("content_block"),
        Just("content_block_delta"),
        Just("message_stop"),
        Just("response.output_item.done"),
        Just("response.completed"),
        Just("error"),
        Just("usage"),
        Just("text"),
    ];
    let leaf = prop_oneof![
        word.clone().prop_map(|word| json!(word)),
        any::<i64>().prop_map(|number| json!(number)),
        Just(json!(null)),
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(serde_json::Value::Array),
            proptest::collection::vec((word.clone(), inner), 0..5).prop_map(|pairs| {
                serde_json::Value::Object(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            }),
        ]
    })
    .prop_map(|value| value.to_string())
}
