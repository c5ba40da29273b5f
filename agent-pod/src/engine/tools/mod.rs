//! The built-in tools: what the model is offered, how its calls are read, how results are told.
//!
//! Owns names, schemas and wording. Must not decide when a call may run; `calls` does.

pub mod files;
pub mod http;
pub mod shell;

use std::time::Duration;

use cadre_protocol::agent::{Builtin, ToolBinding};
use cadre_protocol::exec::{ExecBody, ExecErrorCode, ExecOp, MAX_FRAME_BYTES};
use cadre_protocol::message::ToolCall;
use cadre_protocol::model::ToolSpec;
use cadre_protocol::nesting;
use cadre_protocol::tool::WorkspaceEffect;
use serde_json::{Map, Value, json};

use super::bounds;
use super::ports::{Host, Lost};

/// Time that a sandbox or the API server gets beyond a call's own limit to report it.
const REPORTING_TIME: Duration = Duration::from_secs(10);

/// What a tool came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// For the model.
    pub text: String,
    /// Whether it failed.
    pub error: bool,
    /// Changes to the workspace.
    pub effect: Option<WorkspaceEffect>,
}

impl Outcome {
    /// A good result.
    #[must_use]
    pub fn ok(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A failure.
    #[must_use]
    pub fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), error: true, effect: None }
    }

    fn with(self, effect: WorkspaceEffect) -> Self {
        Self { effect: Some(bounds::fit_effect(effect)), ..self }
    }
}

/// What a call asks for, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// In the sandbox.
    Exec(ExecOp),
    /// At the API server.
    Http,
}

/// A call that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// What it asks for.
    pub action: Action,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// Its limit.
    pub timeout: Duration,
    /// Whether running it twice does no harm.
    pub idempotent: bool,
    /// Whether it runs on a person's word: never more than once.
    pub once: bool,
}

/// A call as the engine understands it.
#[derive(Debug, Clone, PartialEq)]
pub enum Reading {
    /// It can run.
    Ready(Box<Prepared>),
    /// The agent has no such tool.
    UnknownTool(String),
    /// Its arguments are no good; the text says why.
    Malformed(String),
}

/// What the model is offered: without the arguments that the user gives.
#[must_use]
pub fn specs(bindings: &[ToolBinding]) -> Vec<ToolSpec> {
    let offered = |binding: &ToolBinding| {
        let given = binding.gates.user_input.clone();
        family(binding).into_iter().map(move |spec| without(spec, &given))
    };
    bindings.iter().flat_map(offered).collect()
}

fn family(binding: &ToolBinding) -> Vec<ToolSpec> {
    match binding.builtin {
        Builtin::Shell => vec![shell::spec(binding)],
        Builtin::Files => files::specs(),
        Builtin::Http => vec![http::spec(binding)],
    }
}

fn without(mut spec: ToolSpec, names: &[String]) -> ToolSpec {
    for name in names {
        if let Some(Value::Object(properties)) = spec.parameters.get_mut("properties") {
            properties.remove(name);
        }
        if let Some(Value::Array(required)) = spec.parameters.get_mut("required") {
            required.retain(|needed| needed != name);
        }
    }
    spec
}

/// A tool's binding and its whole description.
#[must_use]
pub fn find<'a>(name: &str, bindings: &'a [ToolBinding]) -> Option<(&'a ToolBinding, ToolSpec)> {
    let of = |binding: &'a ToolBinding| {
        let spec = family(binding).into_iter().find(|spec| spec.name == name)?;
        Some((binding, spec))
    };
    bindings.iter().find_map(of)
}

/// Reads a call.
#[must_use]
pub fn read(call: &ToolCall, bindings: &[ToolBinding]) -> Reading {
    let owns = |binding: &&ToolBinding| match binding.builtin {
        Builtin::Shell => call.name == shell::NAME,
        Builtin::Files => files::NAMES.contains(&call.name.as_str()),
        Builtin::Http => call.name == http::NAME,
    };
    let Some(binding) = bindings.iter().find(owns) else {
        let names: Vec<String> = specs(bindings).into_iter().map(|spec| spec.name).collect();
        let asked = bounds::prefix(&call.name, 100);
        return Reading::UnknownTool(format!("There is no tool {asked:?}. Tools: {}.", names.join(", ")));
    };
    match prepare(call, binding) {
        Ok(prepared) => Reading::Ready(Box::new(prepared)),
        Err(why) => Reading::Malformed(format!("The arguments of {} are not usable: {why}", call.name)),
    }
}

/// The arguments as an object, empty where the model wrote none.
pub fn arguments(call: &ToolCall) -> Result<Map<String, Value>, String> {
    if call.arguments.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(&call.arguments) {
        Ok(Value::Object(arguments)) if nesting::fields_fit(&arguments) => Ok(arguments),
        Ok(Value::Object(_)) => Err(format!("they are nested deeper than {} levels", nesting::MAX_LEVELS)),
        Ok(_) => Err("they must be a JSON object".into()),
        Err(error) => Err(format!("they are no valid JSON ({error})")),
    }
}

fn prepare(call: &ToolCall, binding: &ToolBinding) -> Result<Prepared, String> {
    let arguments = arguments(call)?;
    let value = Value::Object(arguments.clone());
    let (action, timeout_seconds, harmless) = match binding.builtin {
        Builtin::Shell => {
            let (op, seconds) = shell::read(value, binding)?;
            (Action::Exec(op), seconds, false)
        }
        Builtin::Files => {
            (Action::Exec(files::read(&call.name, value)?), binding.timeout_seconds, files::reads_only(&call.name))
        }
        Builtin::Http => (Action::Http, binding.timeout_seconds, http::read(&value)?),
    };
    if let Action::Exec(op) = &action {
        fits_a_frame(op)?;
    }
    let timeout = Duration::from_secs(u64::from(timeout_seconds));
    Ok(Prepared { action, arguments, timeout, idempotent: binding.idempotent || harmless, once: false })
}

fn fits_a_frame(op: &ExecOp) -> Result<(), String> {
    let bytes = serde_json::to_vec(op).map_err(|error| error.to_string())?.len();
    if bytes + 1024 > MAX_FRAME_BYTES {
        return Err(format!("{bytes} bytes are more than one call can carry; do it in smaller pieces"));
    }
    Ok(())
}

/// Runs a call. Dropping the future ends what it started.
///
/// # Errors
/// When there is no result.
pub async fn run(call: &ToolCall, prepared: &Prepared, host: &Host) -> Result<Outcome, Lost> {
    if let (Action::Exec(_), Some(workspace)) = (&prepared.action, &host.workspace) {
        // A sandbox that is still starting costs none of the call's own time.
        workspace.ready().await?;
    }
    let work = async {
        match (&prepared.action, &host.workspace) {
            (Action::Http, _) => {
                let arguments = prepared.arguments.clone();
                let result = host.remote.call(&call.id, &call.name, arguments, prepared.idempotent).await?;
                let text = bounds::head_and_tail(&result.content, bounds::RESULT_CHARS);
                Ok(Outcome { text, error: result.error, effect: None })
            }
            (Action::Exec(op), Some(workspace)) => Ok(tell(workspace.request(op.clone()).await?)),
            (Action::Exec(_), None) => Ok(Outcome::error("This agent has no sandbox.")),
        }
    };
    match tokio::time::timeout(prepared.timeout + REPORTING_TIME, work).await {
        Ok(result) => result,
        Err(_) => {
            let reason = format!("no result within {} s", prepared.timeout.as_secs());
            Err(Lost { reason, may_have_happened: true })
        }
    }
}

/// An answer of exec-server in words for the model.
fn tell(body: ExecBody) -> Outcome {
    match body {
        ExecBody::Exited { code, signal, timed_out, killed, full, stdout, stderr, truncated, effect } => {
            let end = shell::End { code, signal, timed_out, killed, full, truncated };
            shell::tell(&end, &stdout, &stderr).with(effect)
        }
        ExecBody::Listing { entries, truncated } => files::tell_listing(&entries, truncated),
        ExecBody::Text { text, total_lines, truncated } => files::tell_text(&text, total_lines, truncated),
        ExecBody::Matches { lines, truncated } => files::tell_matches(&lines, truncated),
        ExecBody::Done { effect } => Outcome::ok("Done.").with(effect),
        ExecBody::Failed { code, message } => Outcome::error(tell_failure(code, &message)),
        ExecBody::Ready { .. } | ExecBody::Missing { .. } => {
            Outcome::error("The sandbox gave an answer that does not fit the request.")
        }
    }
}

fn tell_failure(code: ExecErrorCode, message: &str) -> String {
    let kind = match code {
        ExecErrorCode::InvalidPath => "Invalid path",
        ExecErrorCode::NotFound => "Not found",
        ExecErrorCode::WrongKind => "Wrong kind of file",
        ExecErrorCode::NoMatch => "No unique match",
        ExecErrorCode::TooLarge => "Too large",
        ExecErrorCode::InvalidPattern => "Invalid pattern",
        ExecErrorCode::Spawn => "The command could not be started",
        ExecErrorCode::Io => "The operating system refused",
    };
    format!("{kind}: {}", bounds::head_and_tail(message, 2000))
}

/// A tool with a schema whose root is an object.
fn spec(name: &str, description: impl Into<String>, properties: Value, required: &[&str]) -> ToolSpec {
    let parameters = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    ToolSpec { name: name.into(), description: description.into(), parameters }
}

#[cfg(test)]
mod tests {
    use cadre_protocol::agent::Gates;

    use super::*;

    fn binding(builtin: Builtin) -> ToolBinding {
        ToolBinding {
            builtin,
            timeout_seconds: 30,
            idempotent: false,
            hosts: vec!["api.example".into()],
            gates: Gates::default(),
        }
    }

    fn reading(name: &str, arguments: &str) -> Reading {
        let call = ToolCall { id: "1".into(), name: name.into(), arguments: arguments.into() };
        read(&call, &[binding(Builtin::Shell), binding(Builtin::Files), binding(Builtin::Http)])
    }

    #[test]
    fn every_tool_on_offer_is_understood() {
        let bindings = [binding(Builtin::Shell), binding(Builtin::Files), binding(Builtin::Http)];
        let names: Vec<String> = specs(&bindings).into_iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["shell", "list_files", "read_file", "write_file", "edit_file", "search_files", "http"]);
        for name in names {
            assert!(!matches!(reading(&name, "{}"), Reading::UnknownTool(_)), "{name}");
        }
    }

    #[test]
    fn resources_name_tools_and_arguments_as_the_model_sees_them() {
        for builtin in [Builtin::Shell, Builtin::Files, Builtin::Http] {
            let specs = specs(&[binding(builtin)]);
            let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            assert_eq!(names, builtin.tools());
            let arguments = specs.iter().flat_map(|spec| spec.parameters["properties"].as_object().unwrap().keys());
            let arguments: std::collections::BTreeSet<&str> = arguments.map(String::as_str).collect();
            assert!(arguments.iter().copied().eq(builtin.arguments().iter().copied()), "{arguments:?}");
        }
    }

    #[test]
    fn arguments_of_the_user_are_not_offered_to_the_model() {
        let gates = Gates { user_input: vec!["command".into(), "cwd".into()], ..Gates::default() };
        let spec = specs(&[ToolBinding { gates, ..binding(Builtin::Shell) }]).remove(0);
        let names: Vec<&str> = spec.parameters["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!((names, &spec.parameters["required"]), (vec!["timeout_seconds"], &json!([])));
    }

    #[test]
    fn only_reading_calls_may_be_repeated() {
        let table = [
            ("shell", r#"{"command":"ls"}"#, false),
            ("list_files", "", true),
            ("read_file", r#"{"path":"a"}"#, true),
            ("search_files", r#"{"pattern":"a"}"#, true),
            ("write_file", r#"{"path":"a","content":""}"#, false),
            ("edit_file", r#"{"path":"a","old":"x","new":"y"}"#, false),
            ("http", r#"{"url":"https://api.example"}"#, true),
            ("http", r#"{"url":"https://api.example","method":"post"}"#, false),
        ];
        for (name, arguments, expected) in table {
            match reading(name, arguments) {
                Reading::Ready(prepared) => assert_eq!(prepared.idempotent, expected, "{name} {arguments}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn bad_arguments_are_explained() {
        for (name, arguments) in [
            ("shell", "{"),
            ("shell", "[]"),
            ("shell", "{}"),
            ("read_file", r#"{"path":3}"#),
            ("http", "{}"),
            ("shell", r#"{"command":"ls","timeout_seconds":-1}"#),
        ] {
            assert!(matches!(reading(name, arguments), Reading::Malformed(_)), "{name} {arguments}");
        }
        let deep = format!(r#"{{"command":"ls","x":{}{}}}"#, "[".repeat(100), "]".repeat(100));
        assert!(matches!(reading("shell", &deep), Reading::Malformed(why) if why.contains("nested deeper")));
        let huge = format!(r#"{{"path":"a","content":"{}"}}"#, "x".repeat(MAX_FRAME_BYTES));
        assert!(matches!(reading("write_file", &huge), Reading::Malformed(why) if why.contains("smaller pieces")));
    }
}
