use cadre_protocol::tool::ToolMetrics;
use serde_json::json;

use super::*;

fn read(event: Value) -> RunEvent {
    serde_json::from_value(event).unwrap()
}

/// All text of some events; notes have a `#` before them.
fn shown(events: &[RunEvent]) -> String {
    let mut renderer = Renderer::new(Style::default(), "r1");
    let pieces = events.iter().flat_map(|event| renderer.event(event));
    pieces
        .map(|piece| match piece {
            Piece::Answer(text) => text,
            Piece::Note(text) => format!("#{text}"),
        })
        .collect()
}

fn tool(result: Option<&str>, error: bool) -> ToolExecution {
    ToolExecution {
        tool_name: "shell".into(),
        tool_args: Map::from_iter([("command".to_owned(), json!("ls -l\n| wc"))]),
        result: result.map(str::to_owned),
        tool_call_error: Some(error),
        metrics: result.map(|_| ToolMetrics { start_time: 1.0, end_time: 1.5, duration: 0.5 }),
        ..ToolExecution::default()
    }
}

#[test]
fn a_run_reads_like_a_conversation() {
    let metrics = EventMetrics {
        input_tokens: 1_200,
        output_tokens: 34,
        total_tokens: 1_234,
        cost: Some(0.0123),
        duration: Some(2.5),
        ..EventMetrics::default()
    };
    let events = [
        RunEvent::RunStarted { model: "m".into(), model_provider: "p".into() },
        RunEvent::text(""),
        RunEvent::text("I look "),
        RunEvent::text("first."),
        RunEvent::ToolCallStarted { tool: tool(None, false) },
        RunEvent::ToolCallCompleted { tool: tool(Some("a.csv\nb.csv\n"), false), content: String::new() },
        RunEvent::text("Two files.\n"),
        RunEvent::RunContentCompleted {},
        RunEvent::RunCompleted { content: "Two files.".into(), content_type: "str".into(), metrics: Some(metrics) },
    ];
    assert_eq!(
        shown(&events),
        "I look first.\n\
         #→ shell command=ls -l | wc\n\
         #✓ shell 0.50 s (2 lines) a.csv b.csv\n\
         Two files.\n\
         #✓ completed · 1,234 tokens (1,200 in, 34 out) · $0.0123 · 2.50 s · run r1\n"
    );
}

#[test]
fn what_went_wrong_is_said() {
    for (event, text) in [
        (
            json!({"event": "RunError", "content": "no\u{1b}[2J key", "error_type": "model_provider_error"}),
            "#✗ no[2J key (model_provider_error)\n",
        ),
        (
            json!({"event": "RunError", "content": "slow", "error_type": "a", "error_id": "rate_limit"}),
            "#✗ slow (a, rate_limit)\n",
        ),
        (
            json!({"event": "RunCancelled", "content": "part", "reason": "cancelled by the user"}),
            "#✗ cancelled: cancelled by the user\n",
        ),
        (
            json!({"event": "CustomEvent", "type": "retry", "attempt": 2, "attempts": 3, "delay": 1.0, "error": "502\u{202e}"}),
            "#! the model call failed: 502; attempt 2 of 3 in 1.00 s\n",
        ),
        (
            json!({"event": "CustomEvent", "type": "workspace_rolled_back", "files": ["a", "b", "c", "d", "e", "f\n", "g"]}),
            "#! the workspace was replaced by a new one; changes to these files are lost: a, b, c, d, e and 2 more\n",
        ),
        (
            json!({"event": "CustomEvent", "type": "workspace_rolled_back", "files": ["a"], "reset": ["uploads/b"],
                "may_be_more": true}),
            "#! the workspace was replaced by a new one; changes to these files are lost: a, uploads/b, and perhaps others\n",
        ),
        (
            json!({"event": "CustomEvent", "type": "tool_outcome_unknown", "tool_name": "shell", "reason": "it was lost"}),
            "#! the outcome of shell is unknown, and it was not run again: it was lost\n",
        ),
        (json!({"event": "CustomEvent", "type": "something_new"}), ""),
        (json!({"event": "RunContinued"}), "#the run goes on\n"),
    ] {
        assert_eq!(shown(&[read(event.clone())]), text, "{event}");
    }
    let failed =
        RunEvent::ToolCallCompleted { tool: tool(Some("exit 1: \u{9b}31mno such file"), true), content: String::new() };
    assert_eq!(shown(&[failed]), "#✗ shell 0.50 s exit 1: 31mno such file\n");
}

#[test]
fn an_answer_that_was_not_streamed_is_shown_at_the_end() {
    let completed = |content: Value| RunEvent::RunCompleted { content, content_type: "str".into(), metrics: None };
    assert_eq!(shown(&[completed("Hi".into())]), "Hi\n#✓ completed · run r1\n");
    assert_eq!(shown(&[completed(json!({"a": 1}))]), "{\n  \"a\": 1\n}\n#✓ completed · run r1\n");
}

#[test]
fn no_text_of_a_model_or_a_tool_steers_the_terminal() {
    let evil = "x\u{1b}]52;c;ZXZpbA==\u{7}\u{202e}\u{9b}K";
    let call = ToolExecution {
        tool_name: evil.into(),
        tool_args: Map::from_iter([(evil.to_owned(), json!([evil]))]),
        result: Some(evil.into()),
        ..ToolExecution::default()
    };
    let fields = Map::from_iter(["error", "tool_name", "reason"].map(|name| (name.to_owned(), json!(evil))));
    let mut fields_with_files = fields.clone();
    fields_with_files.insert("files".into(), json!([evil]));
    let custom = |kind: &str| RunEvent::CustomEvent { kind: kind.into(), fields: fields_with_files.clone() };
    let text = shown(&[
        RunEvent::text(evil),
        RunEvent::ToolCallStarted { tool: call.clone() },
        RunEvent::ToolCallCompleted { tool: call, content: evil.into() },
        custom("retry"),
        custom("workspace_rolled_back"),
        custom("tool_outcome_unknown"),
        RunEvent::RunError { content: evil.into(), error_type: evil.into(), error_id: Some(format!("{evil}2")) },
        RunEvent::RunCancelled { content: evil.into(), reason: evil.into() },
        RunEvent::RunCompleted { content: json!({ evil: evil }), content_type: evil.into(), metrics: None },
    ]);
    assert!(text.chars().all(super::super::clean::is_harmless), "{text:?}");
}

#[test]
fn exit_codes_tell_ends_apart() {
    let code = |event| End::of(event).map(End::exit_code);
    assert_eq!(
        ["RunCompleted", "RunError", "RunCancelled", "RunContent"].map(code),
        [Some(0), Some(1), Some(130), None]
    );
}
