//! What the parts weigh: resident memory of their processes, where the nodes are this machine.

use anyhow::{Context as _, Result};

use super::{API_SERVER, Cluster, OPERATOR, running};
use crate::process;
use crate::stats::Samples;
use crate::table::{Goal, Row, Table};

/// Goals in MiB.
const CONTROL_MIB: f64 = 40.0;
const ENGINE_MIB: f64 = 15.0;

/// Operator and API server, in MiB.
pub struct Control {
    operator: Option<f64>,
    api_server: Option<f64>,
}

/// Processes of agent pods.
#[derive(Default)]
pub struct Engines {
    engine: Samples,
    exec_server: Samples,
}

impl Engines {
    /// Weighs a pod's processes.
    pub fn weigh(&mut self, pod_uid: &str) {
        for process in process::of_pod(pod_uid) {
            let samples = match () {
                () if process.command.contains("cadre-agent engine") => &mut self.engine,
                () if process.command.contains("cadre-agent exec-server") => &mut self.exec_server,
                () => continue,
            };
            if let Some(usage) = process::usage(process.pid) {
                samples.push_number(mib(usage.rss_kib));
            }
        }
    }
}

/// A number of KiB as MiB.
#[expect(clippy::cast_precision_loss, reason = "sizes of processes are far below 2^52")]
pub fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Weighs operator and API server.
///
/// # Errors
/// When one of them does not run.
pub async fn control(cluster: &Cluster) -> Result<Control> {
    Ok(Control {
        operator: weight(cluster, OPERATOR, "cadre-operator").await?,
        api_server: weight(cluster, API_SERVER, "cadre-api").await?,
    })
}

async fn weight(cluster: &Cluster, labels: &str, program: &str) -> Result<Option<f64>> {
    let pod = running(&cluster.client, &cluster.system_namespace, labels).await?;
    let uid = pod.metadata.uid.context("a pod has no UID")?;
    let processes = process::of_pod(&uid);
    let found = processes.iter().find(|process| process.command.contains(program));
    Ok(found.and_then(|process| process::usage(process.pid)).map(|usage| mib(usage.rss_kib)))
}

/// Adds the rows.
pub fn rows(table: &mut Table, before: &Control, after: &Control, engines: &Engines) {
    table.section("cluster: resident memory");
    let row = |name: &str, value: Option<f64>, goal: Option<f64>| {
        Row::less(name, "MiB").own(value).goal(goal.map(Goal::AtMost))
    };
    table.push(row("operator, before", before.operator, Some(CONTROL_MIB)));
    table.push(row("operator, after", after.operator, None));
    table.push(row("API server, before", before.api_server, Some(CONTROL_MIB)));
    table.push(row("API server, after", after.api_server, None));
    table.push(row("engine after two turns, p50", engines.engine.percentile(50), Some(ENGINE_MIB)));
    table.push(row("engine after two turns, p99", engines.engine.percentile(99), None));
    table.push(row("exec-server in the sandbox, p50", engines.exec_server.percentile(50), None));
}
