//! `logs RUN`.

use clap::{Args, ValueEnum};

use super::find;
use crate::connect::Server;
use crate::failure::Failure;
use crate::follow::{Follower, Frame};
use crate::render::clean;
use crate::render::events::Renderer;
use crate::render::terminal;

/// Show what a run did
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Id of the run, or run/NAME for a Run object.
    run: String,
    /// Go on until the run ends.
    #[arg(long, short)]
    follow: bool,
    /// Format.
    #[arg(long, short)]
    output: Option<EventFormat>,
}

/// Formats of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EventFormat {
    /// An event a line, as JSON.
    Ndjson,
}

/// Shows the events so far; with `-f` all to come.
///
/// # Errors
/// When there is no such run.
pub async fn logs(args: &LogsArgs, server: &Server) -> Result<(), Failure> {
    let run = find::find(server, &args.run).await?;
    let mut follower = Follower::new(server.api.clone(), &run.agent_id, &run.run_id);
    let mut renderer = Renderer::new(terminal::style(), &run.run_id);
    while let Some(frame) = follower.next().await? {
        if frame.is_event {
            match args.output {
                Some(EventFormat::Ndjson) => terminal::answer(&line(&frame))?,
                None => terminal::write(&frame.event().map(|event| renderer.event(&event)).unwrap_or_default())?,
            }
        } else if frame.name == "subscribed" && !args.follow {
            let status = frame.text("status").unwrap_or_default();
            let note = format!("… {}; -f waits for what comes", clean::clean(&status).to_lowercase());
            terminal::write(&renderer.note(terminal::style().dim(&note)))?;
            break;
        }
    }
    Ok(())
}

/// An event as a line.
#[must_use]
pub fn line(frame: &Frame) -> String {
    format!("{}\n", clean::json(&frame.data).replace('\n', " "))
}
