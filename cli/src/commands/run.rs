//! `run`: makes a run and shows it as it happens.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::HeaderName;
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{cancel, logs, manifest};
use crate::api::{Answer, Api, CallError, collect, segment};
use crate::connect::{Connection, Server, agent_id};
use crate::failure::Failure;
use crate::follow::{Follower, Frame};
use crate::interrupt;
use crate::multipart::{Form, FormFile};
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
/// leaves at once. Exit code: 0 completed, 1 error, 130 cancelled.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The agent.
    #[arg(value_name = "agent/NAME", required_unless_present = "filename")]
    agent: Option<String>,
    /// What it is asked; - reads standard input.
    #[arg(conflicts_with = "filename")]
    text: Option<String>,
    /// Run a Run manifest's input by the API, without making the object.
    #[arg(long, short = 'f', value_name = "FILE")]
    filename: Option<PathBuf>,
    /// File to give it; more than once for several.
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Session to join.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// User on whose behalf you ask.
    #[arg(long, value_name = "ID")]
    user: Option<String>,
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

/// What an agent is asked.
#[derive(Debug, Default)]
pub struct Request {
    /// Text.
    pub text: String,
    /// Files.
    pub files: Vec<FormFile>,
    /// Session to join.
    pub session: Option<String>,
    /// User.
    pub user: Option<String>,
    /// Further fields of the form.
    pub fields: Vec<(&'static str, String)>,
}

impl Request {
    fn form(self, detach: bool) -> Form {
        let Self { text, files, session, user, fields } = self;
        let mut all = vec![("message", text), ("background", "true".to_owned()), ("stream", (!detach).to_string())];
        all.extend(session.map(|session| ("session_id", session)));
        all.extend(user.map(|user| ("user_id", user)));
        all.extend(fields);
        Form { fields: all, files }
    }
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
    let run_id = answer.headers.get(RUN_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let run_id = run_id.ok_or_else(|| CallError::Malformed(format!("it has no {RUN_ID} header")))?;
    let follower = Follower::new(server.api.clone(), &agent, &run_id).with(answer);
    let mut shown = Shown { api: server.api, agent, run_id, output: args.output, session: None, end: None };
    shown.follow(follower, interrupted).await?;
    shown.finish().await
}

struct Wanted {
    agent: String,
    namespace: Option<String>,
    request: Request,
}

impl Wanted {
    /// The manifest's namespace counts where the user named none.
    fn agent_id(&self, server: &Server) -> String {
        agent_id(&self.agent, self.namespace.as_deref().or(server.namespace.as_deref()))
    }
}

impl RunArgs {
    fn wanted(&self) -> Result<Wanted, Failure> {
        let mut wanted = match &self.filename {
            Some(path) => from_manifest(path)?,
            None => Wanted {
                agent: self.agent.clone().unwrap_or_default(),
                namespace: None,
                request: Request { text: self.asked()?, ..Request::default() },
            },
        };
        for path in &self.files {
            wanted.request.files.push(file(path)?);
        }
        let request = &mut wanted.request;
        request.session = self.session.clone().or(request.session.take());
        request.user = self.user.clone();
        Ok(wanted)
    }

    fn asked(&self) -> Result<String, Failure> {
        match self.text.as_deref() {
            Some("-") => read_stdin(),
            Some(text) => Ok(text.to_owned()),
            None if std::io::stdin().is_terminal() => {
                Err(Failure::Other("what is the agent asked? Give a text, or - for standard input".to_owned()))
            }
            None => read_stdin(),
        }
    }
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| Failure::Other(format!("standard input can't be read: {error}")))?;
    Ok(text)
}

fn from_manifest(path: &Path) -> Result<Wanted, Failure> {
    let place = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| Failure::Other(format!("{place}: {error}")))?;
    let read = manifest::read(&text).map_err(|error| Failure::Other(format!("{place}: {error}")))?;
    let manifest::Wanted { agent, namespace, request, ignored } = read;
    if !ignored.is_empty() {
        terminal::note(&format!("{place}: {} only count for Run objects\n", ignored.join(" and ")));
    }
    Ok(Wanted { agent, namespace, request })
}

fn file(path: &Path) -> Result<FormFile, Failure> {
    let wrong = |problem: &str| Failure::Other(format!("{}: {problem}", path.display()));
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| wrong("has no name that can be sent"))?;
    let bytes = std::fs::read(path).map_err(|error| wrong(&error.to_string()))?;
    Ok(FormFile { name: name.to_owned(), media_type: None, bytes: bytes.into() })
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

async fn detached(answer: Answer, output: Option<RunFormat>) -> Result<u8, Failure> {
    let bytes = collect(answer.body).await?;
    let accepted: Value =
        serde_json::from_slice(&bytes).map_err(|error| CallError::Malformed(error.to_string()))?;
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
