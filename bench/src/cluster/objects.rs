//! The objects that the benchmark makes: a scripted Model, and Agents that use it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cadre_crds::agent::{Agent, AgentSpec};
use cadre_crds::common::conditions::READY;
use cadre_crds::model::{Model, ModelSpec};
use cadre_crds::sandbox::Sandbox;
use futures::{Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use uuid::Uuid;

use super::Cluster;
use crate::stats::Samples;

/// Longest wait for an object to be ready.
const LIMIT: Duration = Duration::from_secs(60);

/// Names of what is made; every call of the benchmark has its own.
pub struct Made {
    prefix: String,
    agents: Api<Agent>,
    models: Api<Model>,
}

impl Made {
    /// Makes nothing yet.
    pub fn new(cluster: &Cluster) -> Self {
        let id = Uuid::new_v4().simple().to_string();
        Self {
            prefix: format!("bench-{}", &id[..8]),
            agents: Api::namespaced(cluster.client.clone(), &cluster.namespace),
            models: Api::namespaced(cluster.client.clone(), &cluster.namespace),
        }
    }

    /// Name of the agent with a container for tools.
    pub fn agent(&self) -> String {
        format!("{}-0", self.prefix)
    }

    /// Name of an agent without one.
    pub fn plain_agent(&self) -> String {
        format!("{}-1", self.prefix)
    }

    /// Applies a Model and then Agents, one after the other; answers how long each took to be ready. The first one has
    /// tools, the others have none.
    ///
    /// # Errors
    /// When one does not become ready.
    pub async fn agents_ready(&self, count: u32) -> Result<Samples> {
        let mut models = std::pin::pin!(applied(self.models.clone()));
        self.models.create(&PostParams::default(), &model(&self.prefix)?).await?;
        wait(&mut models, &self.prefix, |model| {
            conditions(model.status.as_ref().map(|status| &status.conditions), model.metadata.generation)
        })
        .await?;
        let mut agents = std::pin::pin!(applied(self.agents.clone()));
        let mut samples = Samples::default();
        for number in 0..count.max(2) {
            let name = format!("{}-{number}", self.prefix);
            let agent = agent(&name, &self.prefix, number == 0)?;
            let began = Instant::now();
            self.agents.create(&PostParams::default(), &agent).await?;
            wait(&mut agents, &name, |agent| {
                conditions(agent.status.as_ref().map(|status| &status.conditions), agent.metadata.generation)
            })
            .await?;
            samples.push(began.elapsed());
        }
        Ok(samples)
    }

    /// Removes all of it, the sessions' pods too.
    ///
    /// # Errors
    /// When the kube-apiserver refuses.
    pub async fn remove(&self, cluster: &Cluster) -> Result<()> {
        let sandboxes: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        for sandbox in sandboxes.list(&ListParams::default()).await? {
            let ours = sandbox.spec.agent_ref.as_ref().is_some_and(|agent| agent.name.starts_with(&self.prefix));
            if ours {
                gone(sandboxes.delete(&sandbox.name_any(), &DeleteParams::background()).await.map(drop))?;
            }
        }
        for agent in self.agents.list_metadata(&ListParams::default()).await? {
            let name = agent.name_any();
            if name.starts_with(&self.prefix) {
                gone(self.agents.delete(&name, &DeleteParams::background()).await.map(drop))?;
            }
        }
        gone(self.models.delete(&self.prefix, &DeleteParams::background()).await.map(drop))
    }
}

/// What is gone already is removed.
///
/// # Errors
/// Any other refusal.
pub fn gone(outcome: kube::Result<()>) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => Ok(other?),
    }
}

fn applied<K>(api: Api<K>) -> impl Stream<Item = Result<K, watcher::Error>>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    watcher(api, watcher::Config::default()).default_backoff().applied_objects()
}

/// Waits until an object is ready.
async fn wait<K, S>(stream: &mut S, name: &str, ready: impl Fn(&K) -> bool) -> Result<()>
where
    K: kube::ResourceExt,
    S: Stream<Item = Result<K, watcher::Error>> + Unpin,
{
    let found = async {
        while let Some(object) = stream.next().await {
            if object.is_ok_and(|object| object.name_any() == name && ready(&object)) {
                return;
            }
        }
    };
    tokio::time::timeout(LIMIT, found).await.with_context(|| format!("{name} does not become ready"))
}

fn conditions(conditions: Option<&Vec<Condition>>, generation: Option<i64>) -> bool {
    conditions.into_iter().flatten().any(|condition| {
        condition.type_ == READY && condition.status == "True" && condition.observed_generation == generation
    })
}

fn model(name: &str) -> Result<Model> {
    let spec: ModelSpec =
        serde_json::from_value(json!({"provider": "Scripted", "model": "bench", "script": "- text: Hello.\n"}))?;
    Ok(Model::new(name, spec))
}

fn agent(name: &str, model: &str, tools: bool) -> Result<Agent> {
    let tools = if tools { json!([{"type": "Builtin", "builtin": {"name": "Shell"}}]) } else { json!([]) };
    let spec: AgentSpec =
        serde_json::from_value(json!({"modelRef": {"name": model}, "instructions": "Be brief.", "tools": tools}))?;
    Ok(Agent::new(name, spec))
}
