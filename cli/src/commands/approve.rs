//! `approve RUN` and `reject RUN`: answers to the calls that a paused run waits for.

use cadre_protocol::requirement::{Gate, RunRequirement, UserInputField};
use cadre_protocol::tool::ToolExecution;
use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::find::{self, RunSummary};
use super::run::{RunFormat, detached, show};
use crate::api::segment;
use crate::connect::{Connection, Server};
use crate::failure::Failure;
use crate::interrupt;
use crate::multipart::Form;
use crate::render::clean::clean;
use crate::render::{pause, terminal};

/// Approve what a paused run waits for, and show what comes of it
///
/// Each call is shown with its arguments; it runs once, with exactly these. While other calls are open the run stays paused.
/// `logs RUN` shows what a run waits for without answering. Exit code as of run.
#[derive(Debug, Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    which: Which,
    /// A value that the call asks the user for; more than once for several.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    values: Vec<String>,
    /// What came of a call that you have carried out yourself; - reads standard input.
    #[arg(long, value_name = "TEXT")]
    result: Option<String>,
}

/// Reject what a paused run waits for, and show what comes of it
///
/// The calls are not run; the model is told so and goes on. Exit code as of run.
#[derive(Debug, Args)]
pub struct RejectArgs {
    #[command(flatten)]
    which: Which,
    /// Why, for the model.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// Which calls, and how to go on.
#[derive(Debug, Args)]
struct Which {
    /// Id of the run, or run/NAME for a Run object.
    run: String,
    /// Only this call; more than once for several. Without it: all that are open.
    #[arg(long = "call", value_name = "ID")]
    calls: Vec<String>,
    /// Print the run's id and leave; the run goes on.
    #[arg(long, short)]
    detach: bool,
    /// Format.
    #[arg(long, short)]
    output: Option<RunFormat>,
}

#[derive(Deserialize)]
struct Paused {
    #[serde(default)]
    requirements: Vec<RunRequirement>,
}

/// Approves; answers the exit code.
///
/// # Errors
/// When the run waits for nobody, an answer is missing, or the run can't be followed.
pub async fn approve(args: ApproveArgs, connection: &Connection) -> Result<u8, Failure> {
    let ApproveArgs { which, values, result } = args;
    let result = super::request::text(result.as_deref())?;
    let answer = |tool: ToolExecution, gate| approved(tool, gate, &values, result.as_deref());
    send(which, "approved", answer, connection).await
}

/// Rejects; answers the exit code.
///
/// # Errors
/// As [`approve`].
pub async fn reject(args: RejectArgs, connection: &Connection) -> Result<u8, Failure> {
    let RejectArgs { which, note } = args;
    let answer = |tool, _| Ok(ToolExecution { confirmed: Some(false), confirmation_note: note.clone(), ..tool });
    send(which, "rejected", answer, connection).await
}

async fn send(
    which: Which,
    said: &str,
    answer: impl Fn(ToolExecution, Gate) -> Result<ToolExecution, Failure>,
    connection: &Connection,
) -> Result<u8, Failure> {
    let interrupted = interrupt::listen();
    let server = connection.server().await?;
    let run = find::find(&server, &which.run).await?;
    let mut tools = Vec::new();
    for requirement in open(&server, &run, &which.calls).await? {
        let gate = requirement.gate();
        terminal::note(&format!("{said}: {}", pause::call(terminal::style(), &requirement.tool_execution)));
        tools.push(answer(requirement.tool_execution, gate)?);
    }
    let path = format!("/agents/{}/runs/{}/continue", segment(&run.agent_id), segment(&run.run_id));
    let tools = serde_json::to_string(&tools).map_err(|error| Failure::Other(error.to_string()))?;
    let fields = vec![
        ("session_id", run.session_id),
        ("tools", tools),
        ("stream", (!which.detach).to_string()),
        ("background", "true".to_owned()),
    ];
    let answer = server.api.post(&path, &Form { fields, ..Form::default() }, &[]).await?;
    if which.detach {
        return detached(answer, which.output).await;
    }
    show(server.api, run.agent_id, answer, which.output, interrupted).await
}

/// The calls that wait, and are meant.
async fn open(server: &Server, run: &RunSummary, calls: &[String]) -> Result<Vec<RunRequirement>, Failure> {
    let (agent, id, session) = (segment(&run.agent_id), segment(&run.run_id), segment(&run.session_id));
    let Paused { requirements } = server.api.get(&format!("/agents/{agent}/runs/{id}?session_id={session}")).await?;
    let id = clean(&run.run_id);
    if requirements.is_empty() {
        return Err(Failure::Other(format!("run {id} waits for nobody: it is {}", clean(&run.status))));
    }
    chosen(requirements, calls).map_err(|call| {
        Failure::Other(format!(
            "run {id} does not wait for a call {call:?}; it shows what it waits for with: logs {id}"
        ))
    })
}

fn chosen(open: Vec<RunRequirement>, calls: &[String]) -> Result<Vec<RunRequirement>, String> {
    match calls.iter().find(|call| !open.iter().any(|requirement| requirement.is_of(call))) {
        Some(unknown) => Err(unknown.clone()),
        None => {
            let is_meant = |it: &RunRequirement| calls.is_empty() || calls.iter().any(|call| it.is_of(call));
            Ok(open.into_iter().filter(is_meant).collect())
        }
    }
}

fn approved(
    mut tool: ToolExecution,
    gate: Gate,
    values: &[String],
    result: Option<&str>,
) -> Result<ToolExecution, Failure> {
    match gate {
        Gate::Confirmation => tool.confirmed = Some(true),
        Gate::UserInput => {
            for field in tool.user_input_schema.iter_mut().flatten() {
                fill(field, values)?;
            }
            tool.answered = Some(true);
        }
        Gate::ExternalExecution => match result {
            Some(result) => tool.result = Some(result.to_owned()),
            None => {
                let id = clean(&tool.tool_call_id);
                return Err(Failure::Other(format!(
                    "call {id} runs at its caller: give what came of it with --result"
                )));
            }
        },
    }
    Ok(tool)
}

fn fill(field: &mut UserInputField, values: &[String]) -> Result<(), Failure> {
    let given = values.iter().filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == field.name);
    let name = clean(&field.name);
    match given {
        Some((_, text)) if field.field_type == "str" => field.value = Some(Value::from(text)),
        Some((_, text)) => {
            let value = serde_json::from_str(text);
            let kind = clean(&field.field_type);
            field.value = Some(value.map_err(|_| Failure::Other(format!("{name} must be JSON of type {kind}")))?);
        }
        None if field.value.is_some() => {}
        None => return Err(Failure::Other(format!("the call asks for {name}: give it with --set {name}=VALUE"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(id: &str) -> ToolExecution {
        ToolExecution { tool_call_id: id.into(), ..ToolExecution::default() }
    }

    #[test]
    fn calls_are_chosen_by_their_id() {
        let open = || vec![RunRequirement::new(tool("a"), 0), RunRequirement::new(tool("b"), 0)];
        let ids = |calls: &[&str]| {
            let calls: Vec<String> = calls.iter().map(|call| (*call).to_owned()).collect();
            let chosen = chosen(open(), &calls)?;
            Ok(chosen.into_iter().map(|it| it.tool_execution.tool_call_id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&[]), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(ids(&["b"]), Ok(vec!["b".to_owned()]));
        assert_eq!(ids(&["b", "c"]), Err("c".to_owned()));
    }

    #[test]
    fn each_kind_of_call_gets_its_answer() {
        let values = ["command=ls -l".to_owned(), "timeout_seconds=5".to_owned()];
        let field = |name: &str, field_type: &str| UserInputField {
            name: name.into(),
            field_type: field_type.into(),
            description: None,
            value: None,
        };
        let schema = Some(vec![field("command", "str"), field("timeout_seconds", "int")]);
        let asks = ToolExecution { user_input_schema: schema, ..tool("c") };
        let yes = approved(tool("c"), Gate::Confirmation, &[], None).unwrap();
        assert_eq!(yes.confirmed, Some(true));
        let told = approved(asks.clone(), Gate::UserInput, &values, None).unwrap();
        let given: Vec<_> = told.user_input_schema.unwrap().into_iter().map(|field| field.value.unwrap()).collect();
        assert_eq!((given, told.answered), (vec!["ls -l".into(), 5.into()], Some(true)));
        assert!(approved(asks.clone(), Gate::UserInput, &values[..1], None).is_err(), "a value is missing");
        let wrong = ["command=x".to_owned(), "timeout_seconds=soon".to_owned()];
        assert!(approved(asks, Gate::UserInput, &wrong, None).is_err(), "a value is no number");
        let done = approved(tool("c"), Gate::ExternalExecution, &[], Some("did it")).unwrap();
        assert_eq!(done.result.as_deref(), Some("did it"));
        assert!(approved(tool("c"), Gate::ExternalExecution, &[], None).is_err());
    }
}
