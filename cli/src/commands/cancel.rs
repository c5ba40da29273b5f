//! `cancel RUN`.

use clap::Args;
use serde::Deserialize;

use super::find;
use crate::api::{Api, CallError, collect, segment};
use crate::connect::Server;
use crate::failure::Failure;
use crate::multipart::Form;
use crate::render::{clean::clean, terminal};

/// Cancel a run
#[derive(Debug, Args)]
pub struct CancelArgs {
    /// Id of the run, or run/NAME for a Run object.
    run: String,
}

#[derive(Deserialize)]
struct Cancelled {
    status: String,
}

/// Cancels.
///
/// # Errors
/// When there is no such run.
pub async fn cancel(args: &CancelArgs, server: &Server) -> Result<(), Failure> {
    let run = find::find(server, &args.run).await?;
    let status = send(&server.api, &run.agent_id, &run.run_id).await?;
    let said = match status.as_str() {
        "CANCELLED" => "cancelled".to_owned(),
        "PENDING" | "RUNNING" | "PAUSED" => "cancel requested".to_owned(),
        ended => format!("had ended before: {}", clean(ended)),
    };
    Ok(terminal::answer(&format!("run {}: {said}\n", clean(&run.run_id)))?)
}

/// Asks for a run's cancel; answers where it stands then.
///
/// # Errors
/// As the call.
pub async fn send(api: &Api, agent_id: &str, run_id: &str) -> Result<String, CallError> {
    let path = format!("/agents/{}/runs/{}/cancel?strict=true", segment(agent_id), segment(run_id));
    let answer = api.post(&path, &Form::default(), &[]).await?;
    let bytes = collect(answer.body).await?;
    let cancelled: Cancelled =
        serde_json::from_slice(&bytes).map_err(|error| CallError::Malformed(error.to_string()))?;
    Ok(cancelled.status)
}
