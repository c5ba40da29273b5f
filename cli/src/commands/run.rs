//! `run`: makes a run and shows it as it happens.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::HeaderName;
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{cancel, logs};
use crate::api::{Answer, Api, CallError, collect, segment};
use crate::connect::Connection;
use crate::failure::Failure;
use crate::follow::{Follower, Frame};
use crate::interrupt;
use crate::multipart::Form;
use crate::render::events::{End, Renderer};
use crate::render::{clean, terminal};

/// The server's name for the run.
const RUN_ID: &str = "x-run-id";
/// Makes a request safe to send again.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Tries to reach the server.
const TRIES: u32 = 4;
/// Silence after which the user is told that the run waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Run an agent and show what it does
///
/// The answer goes to standard output, everything else to standard error. Ctrl-C cancels the run; a second Ctrl-C
/// leaves at once. Exit code: 0 completed, 1 error, 3 waits for a person, 130 cancelled.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The agent.
    #[arg(value_name = "agent/NAME", required_unless_present = "filename")]
    pub(super) agent: Option<String>,
    /// What it is asked; - reads standard input.
    #[arg(conflicts_with = "filename")]
    pub(super) text: Option<String>,
    /// Run a Run manifest's input by the API, without making the object.
    #[arg(long, short = 'f', value_name = "FILE")]
    pub(super) filename: Option<PathBuf>,
    /// File to give it; more than once for several.
    #[arg(long = "file", value_name = "PATH")]
    pub(super) files: Vec<PathBuf>,
    /// Session to join.
    #[arg(long, value_name = "ID")]
    pub(super) session: Option<String>,
    /// User on whose behalf you ask.
    #[arg(long, value_name = "ID")]
    pub(super) user: Option<String>,
    /// Print the run's id and leave; the run goes on.
    #[arg(long, short)]
    detach: bool,
    /// Format.
    #[arg(long, short)]
    output: Option<RunFormat>,
}

/// Formats of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RunFormat {
    /// The run when it has ended, as JSON.
    Json,
    /// An event a line, as JSON.
    Ndjson,
}

/// Runs an agent; answers the exit code.
///
/// # Errors
/// When the run can't be made or followed. A run that fails is no error here.
pub async fn run(args: RunArgs, connection: &Connection) -> Result<u8, Failure> {
    let interrupted = interrupt::listen();
    let wanted = args.wanted()?;
    let server = connection.server().await?;
    let agent = wanted.agent_id(&server);
    let form = wanted.request.form(args.detach);
    let answer = submit(&server.api, &agent, &form).await.map_err(|error| Failure::about_agent(error, &agent))?;
    if args.detach {
        return detached(answer, args.output).await;
    }
    show(server.api, agent, answer, args.output, interrupted).await
}

/// Shows a run whose stream has begun, to its end; answers the exit code.
///
/// # Errors
/// When it can't be followed.
pub async fn show(
    api: Api,
    agent: String,
    answer: Answer,
    output: Option<RunFormat>,
    interrupted: CancellationToken,
) -> Result<u8, Failure> {
    let run_id = answer.headers.get(RUN_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let run_id = run_id.ok_or_else(|| CallError::Malformed(format!("it has no {RUN_ID} header")))?;
    let follower = Follower::new(api.clone(), &agent, &run_id).with(answer);
    let mut shown = Shown { api, agent, run_id, output, session: None, end: None };
    shown.follow(follower, interrupted).await?;
    shown.finish().await
}

/// Sends the request, again where no answer came: the key makes it one run all the same.
async fn submit(api: &Api, agent: &str, form: &Form) -> Result<Answer, CallError> {
    let key = uuid::Uuid::new_v4().to_string();
    let path = format!("/agents/{}/runs", segment(agent));
    let mut tried = 1;
    loop {
        match api.post(&path, form, &[(IDEMPOTENCY_KEY, &key)]).await {
            Err(error) if error.may_pass() && tried < TRIES => sleep(Duration::from_millis(150 << tried)).await,
            other => return other,
        }
        tried += 1;
    }
}

/// Prints the id of a run that goes on.
///
/// # Errors
/// When the answer can't be read.
pub async fn detached(answer: Answer, output: Option<RunFormat>) -> Result<u8, Failure> {
    let bytes = collect(answer.body).await?;
    let accepted: Value = serde_json::from_slice(&bytes).map_err(|error| CallError::Malformed(error.to_string()))?;
    let text = match output {
        Some(_) => clean::json(&accepted.to_string()),
        None => clean::clean(accepted.get("run_id").and_then(Value::as_str).unwrap_or_default()),
    };
    terminal::answer(&format!("{text}\n"))?;
    Ok(0)
}

/// A run that is shown.
struct Shown {
    api: Api,
    agent: String,
    run_id: String,
    output: Option<RunFormat>,
    session: Option<String>,
    end: Option<End>,
}

impl Shown {
    async fn follow(&mut self, mut follower: Follower, interrupted: CancellationToken) -> Result<(), Failure> {
        let style = terminal::style();
        let mut renderer = Renderer::new(style, &self.run_id);
        let (mut cancelled, mut silent) = (false, self.output.is_none());
        let patience = sleep(PATIENCE);
        tokio::pin!(patience);
        loop {
            let frame = tokio::select! {
                biased;
                () = interrupted.cancelled(), if !cancelled => {
                    cancelled = true;
                    terminal::write(&renderer.note(style.warning("cancelling; Ctrl-C again leaves at once")))?;
                    if let Err(error) = cancel::send(&self.api, &self.agent, &self.run_id).await {
                        terminal::write(&renderer.note(style.bad(&format!("the cancel failed: {}", clean::clean(&error.to_string())))))?;
                    }
                    continue;
                }
                frame = follower.next() => frame?,
                () = &mut patience, if silent => {
                    silent = false;
                    terminal::write(&renderer.note(style.dim("… waits for a worker")))?;
                    continue;
                }
            };
            let Some(frame) = frame else { return Ok(()) };
            silent = false;
            self.show(&frame, &mut renderer)?;
        }
    }

    fn show(&mut self, frame: &Frame, renderer: &mut Renderer) -> Result<(), Failure> {
        if !frame.is_event {
            return Ok(());
        }
        if self.session.is_none() {
            self.session = frame.text("session_id");
        }
        self.end = End::of(&frame.name);
        match self.output {
            None => terminal::write(&frame.event().map(|event| renderer.event(&event)).unwrap_or_default())?,
            Some(RunFormat::Ndjson) => terminal::answer(&logs::line(frame))?,
            Some(RunFormat::Json) => {}
        }
        Ok(())
    }

    async fn finish(self) -> Result<u8, Failure> {
        if self.output == Some(RunFormat::Json) {
            let session = segment(self.session.as_deref().unwrap_or_default());
            let path = format!("/agents/{}/runs/{}?session_id={session}", segment(&self.agent), segment(&self.run_id));
            let output: Value = self.api.get(&path).await?;
            terminal::answer(&format!("{}\n", clean::json(&format!("{output:#}"))))?;
        }
        Ok(self.end.map_or(1, End::exit_code))
    }
}
