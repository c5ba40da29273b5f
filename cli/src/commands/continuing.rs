//! `continue RUN`.

use clap::Args;

use super::run::{RunFormat, show};
use super::{find, request};
use crate::api::segment;
use crate::connect::Connection;
use crate::failure::Failure;
use crate::interrupt;
use crate::multipart::Form;

/// Go on from a run and show what it does
///
/// A run that failed goes on at its last good step; its tools are not run again. One that has completed stays as it is, and
/// a new run begins with its conversation and what is added. Exit code as of run.
#[derive(Debug, Args)]
pub struct ContinueArgs {
    /// Id of the run, or run/NAME for a Run object.
    run: String,
    /// What is added; - reads standard input.
    text: Option<String>,
    /// From where: end, last_user, or how many messages are kept.
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    /// Begin a new run where the old one could go on.
    #[arg(long)]
    fork: bool,
    /// Give the last answer anew; the old run leaves the session's history.
    #[arg(long, conflicts_with_all = ["from", "fork"])]
    regenerate: bool,
    /// With --regenerate: leave the old run in the history.
    #[arg(long, requires = "regenerate")]
    keep: bool,
    /// Format.
    #[arg(long, short)]
    output: Option<RunFormat>,
}

/// Goes on from a run; answers the exit code.
///
/// # Errors
/// When the run is not fit for it, or can't be followed.
pub async fn go_on(args: ContinueArgs, connection: &Connection) -> Result<u8, Failure> {
    let interrupted = interrupt::listen();
    let (text, output) = (request::text(args.text.as_deref())?, args.output);
    let server = connection.server().await?;
    let run = find::find(&server, &args.run).await?;
    let path = format!("/agents/{}/runs/{}/continue", segment(&run.agent_id), segment(&run.run_id));
    let answer = server.api.post(&path, &args.form(text, run.session_id), &[]).await?;
    show(server.api, run.agent_id, answer, output, interrupted).await
}

impl ContinueArgs {
    fn form(&self, text: Option<String>, session_id: String) -> Form {
        let yes = || "true".to_owned();
        let mut fields = vec![("session_id", session_id), ("stream", yes()), ("background", yes())];
        fields.extend(text.map(|text| ("input", text)));
        fields.extend(self.from.clone().map(|from| ("continue_from", from)));
        fields.extend(self.fork.then(|| ("fork", yes())));
        fields.extend(self.regenerate.then(|| ("regenerate", yes())));
        fields.extend(self.keep.then(|| ("replace_original", "false".to_owned())));
        Form { fields, ..Form::default() }
    }
}
