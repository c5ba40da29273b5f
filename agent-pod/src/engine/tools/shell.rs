//! `shell`: a command in the sandbox container.

use cadre_protocol::agent::ToolBinding;
use cadre_protocol::exec::ExecOp;
use cadre_protocol::model::ToolSpec;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Outcome;
use crate::engine::bounds::{self, RESULT_CHARS};

/// Name of the tool.
pub const NAME: &str = "shell";
/// Bytes of each stream that exec-server keeps: more than the model sees, as characters may be long.
const KEPT_BYTES: usize = 64 << 10;
/// Characters that the model sees of standard error when standard output is long as well.
const STDERR_CHARS: usize = RESULT_CHARS / 4;
/// Characters of what exec-server says of a folder.
const FULL_CHARS: usize = 400;

#[derive(Deserialize)]
struct Arguments {
    command: String,
    #[serde(default)]
    timeout_seconds: Option<u32>,
    #[serde(default)]
    cwd: Option<String>,
}

/// What the model is told of it.
#[must_use]
pub fn spec(binding: &ToolBinding) -> ToolSpec {
    let limit = binding.timeout_seconds;
    super::spec(
        NAME,
        "Runs a command with bash in the sandbox. It starts in the workspace, whose files stay between calls; \
         processes and environment do not. Returns standard output; exit code and standard error too, when there is \
         something to say of them.",
        json!({
            "command": {"type": "string", "description": "The command line."},
            "timeout_seconds": {
                "type": "integer", "minimum": 1, "maximum": limit,
                "description": format!("Seconds until the command is killed; {limit} if absent."),
            },
            "cwd": {"type": "string", "description": "Working directory, relative to the workspace."},
        }),
        &["command"],
    )
}

/// Reads arguments; gives the request and its seconds.
pub fn read(arguments: Value, binding: &ToolBinding) -> Result<(ExecOp, u32), String> {
    let Arguments { command, timeout_seconds, cwd } =
        serde_json::from_value(arguments).map_err(|error| error.to_string())?;
    let seconds = timeout_seconds.unwrap_or(binding.timeout_seconds).clamp(1, binding.timeout_seconds.max(1));
    let op = ExecOp::Run { command, cwd, timeout_ms: u64::from(seconds) * 1000, max_output_bytes: KEPT_BYTES };
    Ok((op, seconds))
}

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct End {
    /// Exit code.
    pub code: Option<i32>,
    /// Signal.
    pub signal: Option<i32>,
    /// Whether its limit ended it.
    pub timed_out: bool,
    /// Whether it was killed on request.
    pub killed: bool,
    /// What it filled, when it was ended for that.
    pub full: Option<String>,
    /// Whether output was cut.
    pub truncated: bool,
}

/// A command's end in words. An exit code other than 0 is a result, not a failure of the tool.
#[must_use]
pub fn tell(end: &End, stdout: &str, stderr: &str) -> Outcome {
    let status = match end {
        End { full: Some(words), .. } => format!("was killed: {}", bounds::head_and_tail(words, FULL_CHARS)),
        End { timed_out: true, .. } => "timed out and was killed".to_owned(),
        End { killed: true, .. } => "was killed".to_owned(),
        End { code: Some(code), .. } => format!("exit code: {code}"),
        End { signal: Some(9), .. } => "ended by signal 9 (perhaps out of memory)".to_owned(),
        End { signal: Some(signal), .. } => format!("ended by signal {signal}"),
        _ => "ended in an unknown way".to_owned(),
    };
    let stderr = bounds::head_and_tail(stderr.trim_end(), STDERR_CHARS);
    let left = RESULT_CHARS.saturating_sub(stderr.chars().count() + 200);
    let stdout = bounds::head_and_tail(stdout.trim_end(), left);
    // The common case costs the model no token more than the output itself.
    if end.code == Some(0) && !end.timed_out && !end.killed && stderr.is_empty() && !end.truncated {
        let text = if stdout.is_empty() { "(no output)".to_owned() } else { stdout };
        return Outcome { text, error: false, effect: None };
    }
    let mut text = status;
    for (name, output) in [("stdout", stdout), ("stderr", stderr)] {
        if !output.is_empty() {
            text.push_str(&format!("\n--- {name} ---\n{output}"));
        }
    }
    if end.truncated {
        text.push_str("\n[the sandbox kept only part of the output; write it to a file to see all of it]");
    }
    Outcome { text, error: end.timed_out || end.killed || end.full.is_some(), effect: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_say_what_happened() {
        let ended = |code| End { code: Some(code), ..End::default() };
        assert_eq!(tell(&ended(0), "hi\n", "").text, "hi");
        assert_eq!(tell(&ended(0), "", "").text, "(no output)");
        assert_eq!(
            tell(&ended(0), "hi\n", "careful\n").text,
            "exit code: 0\n--- stdout ---\nhi\n--- stderr ---\ncareful"
        );
        let failed = tell(&ended(2), "", "no such file\n");
        assert_eq!((failed.text.as_str(), failed.error), ("exit code: 2\n--- stderr ---\nno such file", false));
        assert!(tell(&End { timed_out: true, ..End::default() }, "", "").error);
        let filled = tell(&End { full: Some("/w holds much".into()), ..End::default() }, "", "");
        assert_eq!((filled.text.as_str(), filled.error), ("was killed: /w holds much", true));
        let long = tell(&ended(0), &"x".repeat(50_000), &"y".repeat(50_000)).text;
        assert!(long.chars().count() <= RESULT_CHARS, "{}", long.chars().count());
        assert!(long.contains("yyy") && long.contains("left out"));
    }
}
