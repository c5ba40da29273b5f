//! Runs by the names that people have for them.

use std::time::Duration;

use cadre_crds::common::conditions::{STALLED, is_true};
use cadre_crds::run::Run;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::{CallError, segment};
use crate::connect::{ConnectError, Server};
use crate::failure::Failure;

/// A run in brief, as the API tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunSummary {
    /// Run.
    pub run_id: String,
    /// Id of the agent.
    pub agent_id: String,
    /// Namespace of the agent.
    pub namespace: String,
    /// Session.
    pub session_id: String,
    /// Where it stands.
    pub status: String,
    /// The beginning of what was asked.
    pub run_input: String,
    /// ISO 8601.
    pub created_at: String,
    /// All that this program does not need by name.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Finds a run by its id, or a Run object by `run/NAME`.
///
/// # Errors
/// When there is none, or it has not been accepted yet.
pub async fn find(server: &Server, name: &str) -> Result<RunSummary, Failure> {
    let run_id = match name.strip_prefix("run/").or_else(|| name.strip_prefix("runs/")) {
        Some(object) => id_of(server, object).await?,
        None => name.to_owned(),
    };
    match server.api.get(&format!("/runs/{}", segment(&run_id))).await {
        Err(error) if error.is_not_found() => Err(not_found(name, error)),
        other => Ok(other?),
    }
}

fn not_found(name: &str, error: CallError) -> Failure {
    match error {
        CallError::Refused { code, .. } => {
            let hint = "What there is: kubectl cadre runs -A. A Run object is named run/NAME";
            Failure::Other(format!("run {name} not found ({code}). {hint}"))
        }
        other => other.into(),
    }
}

/// How long a Run object may take to be accepted.
const ACCEPT_TIME: Duration = Duration::from_secs(30);

/// Whether a Run has been accepted, refused, or is gone.
fn is_settled(run: Option<&Run>) -> bool {
    run.is_none_or(|run| {
        run.status.as_ref().is_some_and(|status| status.run_id.is_some() || is_true(&status.conditions, STALLED))
    })
}

/// The id in a Run object's status.
async fn id_of(server: &Server, object: &str) -> Result<String, Failure> {
    let cluster = server.cluster.as_ref().ok_or(ConnectError::NeedsCluster("a Run object"))?;
    let runs: kube::Api<Run> = kube::Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let mut run = runs.get(object).await.map_err(Box::new)?;
    if !is_settled(Some(&run)) {
        // A Run that was applied a moment ago: its submission is on the way.
        let settled = kube::runtime::wait::await_condition(runs.clone(), object, is_settled);
        if let Ok(Ok(Some(newer))) = tokio::time::timeout(ACCEPT_TIME, settled).await {
            run = newer;
        }
    }
    let id = run.status.and_then(|status| status.run_id);
    let see = format!("kubectl describe run {object} -n {}", cluster.namespace);
    id.ok_or_else(|| Failure::Other(format!("run {object} has not been accepted yet. More: {see}")))
}
