//! New sessions, one after the other, and a second turn in each.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cadre_crds::sandbox::Sandbox;
use http::{Method, StatusCode};
use kube::Api;
use kube::api::DeleteParams;
use uuid::Uuid;

use super::objects::{self, Made};
use super::watch::{Marks, Watches};
use super::{Cluster, memory};
use crate::client::{Client, Target};
use crate::process;
use crate::stats::Samples;
use crate::table::{Goal, Row, Table};

/// Longest wait for the cluster to show what is known otherwise.
const LIMIT: Duration = Duration::from_secs(30);
/// The goals of a new session and of a warm turn, in milliseconds.
const NEW_P50: f64 = 1200.0;
const NEW_P99: f64 = 2000.0;
const WARM_P50: f64 = 50.0;

/// Times of all sessions, by phase, since the request.
#[derive(Default)]
struct Phases {
    accepted: Samples,
    sandbox: Samples,
    pod: Samples,
    scheduled: Samples,
    network: Samples,
    container: Samples,
    reported: Samples,
    first_event: Samples,
    content: Samples,
    ended: Samples,
    warm_first: Samples,
    warm: Samples,
}

/// Measures sessions with and without a container for tools; answers what their engines weigh.
///
/// # Errors
/// When a run does not end well.
pub async fn measure(cluster: &Cluster, made: &Made, count: u32, table: &mut Table) -> Result<memory::Engines> {
    let watches = Watches::start(cluster);
    let sandboxes: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let mut engines = memory::Engines::default();
    for (agent, count, what) in [
        (made.agent(), count, "engine and sandbox"),
        (made.plain_agent(), count.div_ceil(2), "engine alone, for agents without shell and files"),
    ] {
        let target = Target { address: cluster.api, agent, key: Some(cluster.key.clone()) };
        let mut phases = Phases::default();
        for number in 0..count {
            let began = session(&target, &watches, &mut phases, &mut engines).await;
            let (mut client, session) = began.with_context(|| format!("session {number} of {}", target.agent))?;
            end(&mut client, &session, &watches, &sandboxes).await?;
        }
        table.section(format!("cluster: {count} new sessions one after the other, pod with {what}; since POST"));
        rows(table, &phases);
    }
    Ok(engines)
}

async fn session(
    target: &Target,
    watches: &Watches,
    phases: &mut Phases,
    engines: &mut memory::Engines,
) -> Result<(Client, String)> {
    let session = Uuid::new_v4().to_string();
    let mut client = Client::connect(target).await?;
    let began = Instant::now();
    let stream = client.stream(&session, "Hello", false).await?;
    // The cluster may tell later than the worker itself.
    let told = watches.until(&session, |marks| marks.reported.is_some());
    tokio::time::timeout(LIMIT, told).await.context("the watch does not show the session's pod")?;
    let marks = watches.marks(&session);
    phases.accepted.push(stream.accepted);
    seen(phases, &marks, began);
    started(phases, &marks, began);
    for (samples, time) in [
        (&mut phases.first_event, stream.first(None)),
        (&mut phases.content, stream.first(Some("RunContent"))),
        (&mut phases.ended, Some(stream.ended)),
    ] {
        samples.push(time.context("a run has no answer")?);
    }
    let warm = client.stream(&session, "Again", false).await?;
    phases.warm_first.push(warm.first(None).context("a run has no events")?);
    phases.warm.push(warm.ended);
    engines.weigh(marks.pod_uid.as_deref().unwrap_or_default());
    Ok((client, session))
}

fn seen(phases: &mut Phases, marks: &Marks, began: Instant) {
    for (samples, mark) in [
        (&mut phases.sandbox, marks.sandbox),
        (&mut phases.pod, marks.pod),
        (&mut phases.scheduled, marks.scheduled),
        (&mut phases.reported, marks.reported),
    ] {
        if let Some(mark) = mark {
            samples.push(mark.saturating_duration_since(began));
        }
    }
}

/// Starts of the pod's processes: only where its node is this machine.
fn started(phases: &mut Phases, marks: &Marks, began: Instant) {
    for process in process::of_pod(marks.pod_uid.as_deref().unwrap_or("none")) {
        let samples = match () {
            () if process.command.contains("cadre-agent engine") => &mut phases.container,
            () if process.command.contains("pause") => &mut phases.network,
            () => continue,
        };
        if let Some(at) = process::started(process.pid) {
            samples.push(at.saturating_duration_since(began));
        }
    }
}

/// Removes the session and its pod, and waits for that, so that the next one finds the machine as this one did. A pod
/// that takes long to go is no reason to give up.
async fn end(client: &mut Client, session: &str, watches: &Watches, sandboxes: &Api<Sandbox>) -> Result<()> {
    let (status, _) = client.call(Method::DELETE, &format!("/sessions/{session}"), None).await?;
    ensure!(status == StatusCode::NO_CONTENT, "the session could not be deleted: {status}");
    if let Some(name) = watches.sandbox(session) {
        objects::gone(sandboxes.delete(&name, &DeleteParams::background()).await.map(drop))?;
    }
    let _ = tokio::time::timeout(LIMIT, watches.until_gone(session)).await;
    Ok(())
}

fn rows(table: &mut Table, phases: &Phases) {
    percentiles(table, "accepted (head of the answer)", &phases.accepted, None, None);
    percentiles(table, "Sandbox created (watch)", &phases.sandbox, None, None);
    percentiles(table, "pod created (watch)", &phases.pod, None, None);
    percentiles(table, "pod scheduled (watch)", &phases.scheduled, None, None);
    percentiles(table, "pod's network made (kernel, ± 10 ms)", &phases.network, None, None);
    percentiles(table, "engine started (kernel, ± 10 ms)", &phases.container, None, None);
    percentiles(table, "first event: worker has the run", &phases.first_event, Some(NEW_P50), Some(NEW_P99));
    percentiles(table, "first content", &phases.content, None, None);
    percentiles(table, "run ended", &phases.ended, None, None);
    percentiles(table, "container running (kubelet's report, watch)", &phases.reported, None, None);
    percentiles(table, "warm second turn: first event", &phases.warm_first, None, None);
    percentiles(table, "warm second turn: whole", &phases.warm, Some(WARM_P50), None);
}

/// Two rows: p50 and p99, in milliseconds.
pub fn percentiles(table: &mut Table, name: &str, samples: &Samples, p50: Option<f64>, p99: Option<f64>) {
    for (percent, goal) in [(50, p50), (99, p99)] {
        let row = Row::less(format!("{name}, p{percent}"), "ms");
        table.push(row.own(samples.percentile(percent)).goal(goal.map(Goal::AtMost)));
    }
}
