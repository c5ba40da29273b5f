//! What a paused run waits for, in words: a person decides by it, so nothing of a call may hide.

use cadre_protocol::requirement::{Gate, RunRequirement, UserInputField};
use cadre_protocol::tool::ToolExecution;
use serde_json::Value;

use super::clean::{clean, one_line};
use super::style::Style;

/// Longest shown argument, in characters.
const MAX_ARGUMENT: usize = 4_000;

/// A run's pause: each call that waits, then the commands that answer it. `program` is this program, as people call it.
#[must_use]
pub fn pause(style: Style, program: &str, run_id: &str, requirements: &[RunRequirement]) -> String {
    let mut text = String::new();
    for requirement in requirements {
        let tool = &requirement.tool_execution;
        let (why, how) = match requirement.gate() {
            Gate::Confirmation => ("needs your yes", String::new()),
            Gate::UserInput => ("needs values of yours", fields(tool)),
            Gate::ExternalExecution => ("is yours to carry out", " --result TEXT".to_owned()),
        };
        text.push_str(&style.warning(&format!("‖ {why}: ")));
        text.push_str(&call(style, tool));
        let id = one_line(&tool.tool_call_id, 100);
        text.push_str(&style.dim(&format!("    {program} approve {run_id} --call {id}{how}\n")));
    }
    let end = format!("‖ the run waits: {program} approve {run_id}, or {program} reject {run_id} --note TEXT");
    text.push_str(&style.warning(&end));
    text
}

/// A call with its arguments, each on lines of its own.
#[must_use]
pub fn call(style: Style, tool: &ToolExecution) -> String {
    let mut text = format!("{}\n", style.name(&one_line(&tool.tool_name, 60)));
    for (name, value) in &tool.tool_args {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        text.push_str(&format!("    {}: {}\n", one_line(name, 60), indented(&value)));
    }
    text
}

/// Lines after the first one are marked, so that no argument looks like another one.
fn indented(value: &str) -> String {
    let value = value.replace('\r', "\n");
    let shown: String = value.chars().take(MAX_ARGUMENT).collect();
    let more = value.chars().count().saturating_sub(MAX_ARGUMENT);
    let rest = if more > 0 { format!("\n    │ … {more} characters more") } else { String::new() };
    format!("{}{rest}", clean(&shown).trim_end().replace('\n', "\n    │ "))
}

fn fields(tool: &ToolExecution) -> String {
    let field = |field: &UserInputField| format!(" --set {}=…", one_line(&field.name, 60));
    tool.user_input_schema.iter().flatten().map(field).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pause_shows_all_of_a_call_and_the_next_command() {
        let tool_args = json!({"command": "echo a\nrm -rf /\u{1b}[2K\u{202e}\n    timeout_seconds: 1\r ", "n": 2});
        let tool = ToolExecution {
            tool_call_id: "c1".into(),
            tool_name: "shell\u{1b}[0m".into(),
            tool_args: tool_args.as_object().unwrap().clone(),
            requires_confirmation: Some(true),
            ..ToolExecution::default()
        };
        let field = UserInputField { name: "url".into(), field_type: "str".into(), description: None, value: None };
        let asks = ToolExecution {
            tool_call_id: "c2".into(),
            tool_name: "http".into(),
            requires_user_input: Some(true),
            user_input_schema: Some(vec![field]),
            ..ToolExecution::default()
        };
        let requirements = [RunRequirement::new(tool, 0), RunRequirement::new(asks, 0)];
        let expected = "‖ needs your yes: shell[0m\n    command: echo a\n    │ rm -rf /[2K\n    │     timeout_seconds: 1\n    \
                        n: 2\n    cadre approve r1 --call c1\n\
                        ‖ needs values of yours: http\n    cadre approve r1 --call c2 --set url=…\n\
                        ‖ the run waits: cadre approve r1, or cadre reject r1 --note TEXT";
        assert_eq!(pause(Style::default(), "cadre", "r1", &requirements), expected);
    }

    #[test]
    fn what_is_cut_is_told() {
        let text = indented(&"x".repeat(MAX_ARGUMENT + 7));
        assert!(text.ends_with("│ … 7 characters more"), "{text}");
    }
}
