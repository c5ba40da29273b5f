//! The script's language: reading and checking.

use cadre_protocol::model::{FinishReason, ModelError, ModelErrorCategory};
use serde::Deserialize;
use serde_json::Value;

use crate::failure::failure;

const MAX_BYTES: usize = 256 << 10;
const MAX_TURNS: usize = 1_000;
const DEFAULT: &str = "You said: {{input}}";
const AFTER_THE_END: &str = "(end of script)";

/// A list of turns.
#[derive(Debug, PartialEq)]
pub(super) struct Script {
    turns: Vec<Turn>,
}

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Turn {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) tools: Vec<Call>,
    pub(super) delay_ms: u64,
    pub(super) chunk: Option<usize>,
    pub(super) chunk_delay_ms: u64,
    pub(super) fail: Option<Fail>,
    pub(super) finish: Option<FinishReason>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    pub(super) name: String,
    #[serde(default)]
    pub(super) arguments: Value,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Fail {
    category: ModelErrorCategory,
    #[serde(default)]
    message: String,
    /// How many calls fail; all of them when absent.
    #[serde(default)]
    pub(super) times: Option<u32>,
    #[serde(default)]
    retry_after_ms: Option<u64>,
}

impl Fail {
    pub(super) fn error(&self) -> ModelError {
        let message = if self.message.is_empty() { "the script fails here" } else { &self.message };
        ModelError { retry_after_ms: self.retry_after_ms, ..failure(self.category, message) }
    }
}

impl Script {
    /// The script that applies.
    pub(super) fn choose(prompt: Option<&str>, spec: Option<&str>) -> Result<Self, ModelError> {
        let (text, origin) = match (prompt, spec) {
            (Some(text), _) => (text, "the script in the prompt"),
            (None, Some(text)) => (text, "the Model's script"),
            (None, None) => return Ok(Self { turns: vec![Turn { text: DEFAULT.to_owned(), ..Turn::default() }] }),
        };
        Self::parse(text).map_err(|error| failure(ModelErrorCategory::BadRequest, format!("{origin}: {error}")))
    }

    /// The answer number `index`.
    pub(super) fn turn(&self, index: usize) -> Turn {
        let end = || Turn { text: AFTER_THE_END.to_owned(), ..Turn::default() };
        self.turns.get(index).cloned().unwrap_or_else(end)
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("is longer than {MAX_BYTES} bytes"));
        }
        let value: Value = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
        let Value::Array(list) = value else {
            return Err("is not a list of turns".to_owned());
        };
        if list.len() > MAX_TURNS {
            return Err(format!("has more than {MAX_TURNS} turns"));
        }
        let turns = list.into_iter().enumerate().map(|(index, value)| {
            let turn = match value {
                Value::String(text) => Ok(Turn { text, ..Turn::default() }),
                other => serde_json::from_value(other),
            };
            turn.map_err(|error| format!("turn {}: {error}", index + 1)).and_then(|turn| checked(turn, index))
        });
        Ok(Self { turns: turns.collect::<Result<_, _>>()? })
    }
}

fn checked(turn: Turn, index: usize) -> Result<Turn, String> {
    let wrong = |what: &str| Err(format!("turn {}: {what}", index + 1));
    if turn.chunk == Some(0) {
        return wrong("chunk must be at least 1");
    }
    let odd = |call: &Call| !matches!(call.arguments, Value::Null | Value::Object(_) | Value::String(_));
    if turn.tools.iter().any(odd) {
        return wrong("arguments must be an object or a string");
    }
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_read() {
        let script = Script::parse(
            "- hello\n- {text: t, delayMs: 5, chunk: 2}\n- tools: [{name: shell, arguments: {command: ls}}, {name: x}]",
        )
        .unwrap();
        assert_eq!(script.turns.len(), 3);
        assert_eq!(script.turn(0).text, "hello");
        assert_eq!((script.turn(1).delay_ms, script.turn(1).chunk), (5, Some(2)));
        assert_eq!(script.turn(2).tools.len(), 2);
        assert_eq!(script.turn(3).text, AFTER_THE_END);
        assert!(Script::parse(r#"["json", {"fail": {"category": "rate_limit", "times": 2}}]"#).is_ok());
    }

    #[test]
    fn mistakes_name_their_turn() {
        let cases = [
            ("text: no list", "is not a list of turns"),
            ("- ok\n- {txt: a}", "turn 2: unknown field `txt`"),
            ("- {chunk: 0}", "turn 1: chunk must be at least 1"),
            ("- tools: [{name: a, arguments: [1]}]", "turn 1: arguments must be an object or a string"),
            ("- fail: {category: nonsense}", "turn 1: unknown variant `nonsense`"),
        ];
        for (text, expected) in cases {
            let error = Script::parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        assert!(Script::parse("- [unclosed").is_err());
    }
}
