//! Events of a run as text.

use cadre_protocol::event::{EventMetrics, RunEvent};
use cadre_protocol::tool::ToolExecution;
use serde_json::{Map, Value};

use super::clean::{clean, one_line};
use super::style::Style;
use super::{numbers, pause};

/// Longest shown arguments of a tool call, in characters.
const MAX_ARGUMENTS: usize = 100;
/// Longest shown result of a tool call, in characters.
const MAX_RESULT: usize = 100;
/// Most names of a list.
const MAX_NAMES: usize = 5;

/// Text, and whether it is the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// What the agent says.
    Answer(String),
    /// What happens meanwhile.
    Note(String),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Well.
    Completed,
    /// With an error.
    Failed,
    /// By a cancel.
    Cancelled,
    /// Not yet: it waits for a person.
    Paused,
}

impl End {
    /// The end that an event tells of.
    #[must_use]
    pub fn of(event: &str) -> Option<Self> {
        match event {
            "RunCompleted" => Some(Self::Completed),
            "RunError" => Some(Self::Failed),
            "RunCancelled" => Some(Self::Cancelled),
            "RunPaused" => Some(Self::Paused),
            _ => None,
        }
    }

    /// The exit code of a program that waited for it.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::Failed => 1,
            Self::Paused => 3,
            Self::Cancelled => 130,
        }
    }
}

/// Turns events into text, one after the other.
#[derive(Debug)]
pub struct Renderer {
    style: Style,
    run_id: String,
    /// Whether the answer so far ends inside of a line.
    inside_line: bool,
    /// Whether any of the answer was shown.
    answered: bool,
}

impl Renderer {
    /// For one run.
    #[must_use]
    pub fn new(style: Style, run_id: &str) -> Self {
        Self { style, run_id: clean(run_id), inside_line: false, answered: false }
    }

    /// The text of an event; often none.
    pub fn event(&mut self, event: &RunEvent) -> Vec<Piece> {
        match event {
            RunEvent::RunContent { content, .. } => self.answer(content),
            RunEvent::RunContinued {} => self.note(self.style.warning("the run goes on")),
            RunEvent::ToolCallStarted { tool } => self.note(self.started(tool)),
            RunEvent::ToolCallCompleted { tool, .. } => self.note(self.finished(tool)),
            RunEvent::CustomEvent { kind, fields } => match self.custom(kind, fields) {
                Some(text) => self.note(text),
                None => Vec::new(),
            },
            RunEvent::RunCompleted { content, metrics, .. } => self.completed(content, metrics.as_ref()),
            RunEvent::RunError { content, error_type, error_id } => {
                let code = error_id.as_ref().filter(|id| *id != error_type).map(|id| format!(", {}", clean(id)));
                let text = format!("✗ {} ({}{})", clean(content), clean(error_type), code.unwrap_or_default());
                self.note(self.style.bad(&text))
            }
            RunEvent::RunCancelled { reason, .. } => {
                self.note(self.style.warning(&format!("✗ cancelled: {}", one_line(reason, 200))))
            }
            RunEvent::RunPaused { requirements, .. } => {
                self.note(pause::pause(self.style, crate::program(), &self.run_id, requirements))
            }
            RunEvent::RunStarted { .. }
            | RunEvent::ModelRequestStarted { .. }
            | RunEvent::ModelRequestCompleted { .. }
            | RunEvent::RunContentCompleted {}
            | RunEvent::ToolCallError { .. } => Vec::new(),
        }
    }

    /// A line of one's own, after the answer so far.
    pub fn note(&mut self, text: impl Into<String>) -> Vec<Piece> {
        let mut pieces = self.end_line();
        pieces.push(Piece::Note(format!("{}\n", text.into())));
        pieces
    }

    /// Ends the line that the answer is in.
    fn end_line(&mut self) -> Vec<Piece> {
        if std::mem::take(&mut self.inside_line) { vec![Piece::Answer("\n".to_owned())] } else { Vec::new() }
    }

    fn answer(&mut self, content: &Value) -> Vec<Piece> {
        let text = match content {
            Value::String(text) => clean(text),
            Value::Null => String::new(),
            object => clean(&format!("{object:#}")),
        };
        if text.is_empty() {
            return Vec::new();
        }
        self.inside_line = !text.ends_with('\n');
        self.answered = true;
        vec![Piece::Answer(text)]
    }

    fn started(&self, tool: &ToolExecution) -> String {
        let name = self.style.name(&one_line(&tool.tool_name, 60));
        format!("→ {name} {}", self.style.dim(&arguments(&tool.tool_args)))
    }

    fn finished(&self, tool: &ToolExecution) -> String {
        let result = tool.result.as_deref().unwrap_or_default();
        let time = tool.metrics.map(|metrics| format!(" {}", numbers::seconds(metrics.duration))).unwrap_or_default();
        let name = self.style.name(&one_line(&tool.tool_name, 60));
        let failed = tool.tool_call_error == Some(true);
        let sign = if failed { self.style.bad("✗") } else { self.style.good("✓") };
        let lines = result.trim_end().lines().count();
        let more = if lines > 1 { format!(" ({lines} lines)") } else { String::new() };
        let text = one_line(result, MAX_RESULT);
        let shown = if failed { self.style.bad(&text) } else { self.style.dim(&text) };
        format!("{sign} {name}{time}{} {shown}", self.style.dim(&more))
    }

    fn custom(&self, kind: &str, fields: &Map<String, Value>) -> Option<String> {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(|text| one_line(text, 300));
        let number = |name: &str| fields.get(name).and_then(Value::as_f64).unwrap_or_default();
        let said = match kind {
            "retry" => format!(
                "the model call failed: {}; attempt {} of {} in {}",
                text("error").unwrap_or_default(),
                number("attempt"),
                number("attempts"),
                numbers::seconds(number("delay")),
            ),
            "workspace_rolled_back" => format!(
                "the workspace was replaced by a new one; changes to these files are lost: {}{}",
                names([fields.get("files"), fields.get("reset")]),
                if fields.get("may_be_more") == Some(&Value::Bool(true)) { ", and perhaps others" } else { "" },
            ),
            "tool_outcome_unknown" => format!(
                "the outcome of {} is unknown, and it was not run again: {}",
                text("tool_name").unwrap_or_default(),
                text("reason").unwrap_or_default()
            ),
            _ => return None,
        };
        Some(self.style.warning(&format!("! {said}")))
    }

    fn completed(&mut self, content: &Value, metrics: Option<&EventMetrics>) -> Vec<Piece> {
        let mut pieces = if self.answered { Vec::new() } else { self.answer(content) };
        let mut facts = vec!["✓ completed".to_owned()];
        facts.extend(metrics.into_iter().flat_map(measured));
        facts.push(format!("run {}", self.run_id));
        pieces.extend(self.note(self.style.dim(&facts.join(" · "))));
        pieces
    }
}

fn measured(metrics: &EventMetrics) -> Vec<String> {
    let mut facts = vec![format!(
        "{} tokens ({} in, {} out)",
        numbers::count(metrics.total_tokens),
        numbers::count(metrics.input_tokens),
        numbers::count(metrics.output_tokens)
    )];
    facts.extend(metrics.cost.map(numbers::dollars));
    facts.extend(metrics.duration.map(numbers::seconds));
    facts
}

/// `command=ls -l path=a b`: names and values on one line.
fn arguments(arguments: &Map<String, Value>) -> String {
    let one = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name}={text}"),
        other => format!("{name}={other}"),
    };
    one_line(&arguments.iter().map(one).collect::<Vec<_>>().join(" "), MAX_ARGUMENTS)
}

fn names<const N: usize>(lists: [Option<&Value>; N]) -> String {
    let lists = lists.into_iter().flatten().filter_map(Value::as_array);
    let all: Vec<&str> = lists.flatten().filter_map(Value::as_str).collect();
    let shown: Vec<String> = all.iter().take(MAX_NAMES).map(|name| one_line(name, 100)).collect();
    let more = all.len().saturating_sub(MAX_NAMES);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
