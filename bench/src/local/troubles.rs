//! What a disturbance costs: a cancel while a tool blocks, and the loss of the worker process in the middle of a run.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use http_body_util::BodyExt as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use uuid::Uuid;

use super::server::Server;
use crate::client::{Client, Target, form};
use crate::sse::Events;
use crate::stats::Samples;
use crate::table::{Goal, Row, Table};

/// Longest wait for what follows.
const LIMIT: Duration = Duration::from_secs(60);
const CANCELS: usize = 20;
const LOSSES: usize = 10;

/// Measures both, of Cadre alone: the peer has no worker processes, and its cancel waits for the tool.
///
/// # Errors
/// When a run does not get there.
pub async fn measure(cadre: &Server, table: &mut Table) -> Result<()> {
    let target = cadre.target("busy");
    let mut cancels = Samples::default();
    for _ in 0..CANCELS {
        let cancel = async |run_id: &str| {
            let path = format!("/agents/{}/runs/{run_id}/cancel", target.agent);
            let (status, _) = Client::connect(&target).await?.call(Method::POST, &path, None).await?;
            ensure!(status.is_success(), "the cancel was answered {status}");
            Ok(())
        };
        cancels.push(after(&target, &script(&["sleep 30"]), cancel, "RunCancelled").await?);
    }
    let row = Row::less("cancel while a tool blocks → RunCancelled, p50", "ms");
    table.push(row.own(cancels.percentile(50)).goal(Some(Goal::AtMost(200.0))));
    table.push(Row::less("cancel while a tool blocks → RunCancelled, p99", "ms").own(cancels.percentile(99)));

    let mut losses = Samples::default();
    for _ in 0..LOSSES {
        let end_worker = async |_: &str| {
            let pid = cadre.worker().context("there is no worker")?;
            Ok(kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?)
        };
        losses.push(after(&target, &script(&["sleep 0.2"; 3]), end_worker, "RunContinued").await?);
    }
    let row = Row::less("kill -9 of the worker in a tool call → the run goes on in another, p50", "ms");
    table.push(row.own(losses.percentile(50)).goal(Some(Goal::AtMost(1000.0))));
    Ok(())
}

/// A script of such commands, one after the other.
fn script(commands: &[&str]) -> String {
    let call = |command: &&str| format!("- tools: [{{name: shell, arguments: {{command: '{command}'}}}}]\n");
    format!("```script\n{}- text: Done.\n```", commands.iter().map(call).collect::<String>())
}

/// Streams a run, disturbs it in its first tool call, and answers how long after that an event came.
async fn after(
    target: &Target,
    message: &str,
    disturb: impl AsyncFn(&str) -> Result<()>,
    awaited: &str,
) -> Result<Duration> {
    let session = Uuid::new_v4().to_string();
    let fields = form(&[("message", message), ("stream", "true"), ("session_id", &session)]);
    let path = format!("/agents/{}/runs", target.agent);
    let mut client = Client::connect(target).await?;
    let response = client.send(Method::POST, &path, Some(fields)).await?;
    let run_id = response.headers().get("x-run-id").and_then(|id| id.to_str().ok()).context("no id")?.to_owned();
    let (mut body, mut events, mut began) = (response.into_body(), Events::default(), None);
    while let Some(frame) = tokio::time::timeout(LIMIT, body.frame()).await.context("a stream hangs")? {
        let Ok(bytes) = frame.context("a stream broke")?.into_data() else { continue };
        for name in events.push(&bytes) {
            match began {
                None if name == "ToolCallStarted" => {
                    began = Some(Instant::now());
                    disturb(&run_id).await?;
                }
                Some(began) if name == awaited => return Ok(Instant::now() - began),
                _ => {}
            }
        }
    }
    bail!("run {run_id} ended without {awaited}")
}
