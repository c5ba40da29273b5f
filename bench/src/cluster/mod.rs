//! Cadre on a cluster: how soon an Agent is ready, how soon a new session's pod speaks, what it all weighs.
//!
//! Owns the objects that it makes, and removes them. Times are this process's own clock: what a watch shows is when a
//! client could know it. Starts of containers are the kernel's, where the nodes are this machine.

mod images;
pub mod memory;
mod objects;
mod sessions;
mod watch;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::table::Table;

/// Labels of the API server's pods.
const API_SERVER: &str = "app.kubernetes.io/name=cadre,app.kubernetes.io/component=api-server";
/// Labels of the operator's pods.
const OPERATOR: &str = "app.kubernetes.io/name=cadre,app.kubernetes.io/component=operator";
/// The API server's user port.
const PORT: u16 = 7777;

/// Which cluster, and how much.
#[derive(Debug, clap::Args)]
#[group(id = "cluster_arguments", multiple = true)]
pub struct Arguments {
    /// Kubeconfig of the cluster [default: the one-machine cluster's]
    #[arg(long, global = true, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of operator and API server
    #[arg(long, global = true, default_value = "cadre-system")]
    system_namespace: String,
    /// Namespace for the agents that are made
    #[arg(long, global = true, default_value = "default")]
    namespace: String,
    /// Agents to apply
    #[arg(long, global = true, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    agents: u32,
    /// New sessions to begin
    #[arg(long, global = true, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    sessions: u32,
}

/// The cluster and Cadre's place in it.
pub struct Cluster {
    client: Client,
    namespace: String,
    system_namespace: String,
    api: SocketAddr,
    key: String,
}

impl Cluster {
    async fn find(arguments: &Arguments) -> Result<Self> {
        let path = match &arguments.kubeconfig {
            Some(path) => path.clone(),
            None => cadre_e2e::cache::root()?.join("cluster/kubeconfig"),
        };
        let file = Kubeconfig::read_from(&path)
            .with_context(|| format!("there is no cluster: {} can't be read; `make up` starts one", path.display()))?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let system_namespace = arguments.system_namespace.clone();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &system_namespace);
        let secret = secrets.get("cadre-api-key").await.context("Cadre is not installed: `make up`")?;
        let key = secret.data.and_then(|mut data| data.remove("OS_SECURITY_KEY")).context("the API has no key")?;
        let pod = running(&client, &system_namespace, API_SERVER).await?;
        let address: IpAddr =
            pod.status.and_then(|status| status.pod_ip).context("the API server has no address")?.parse()?;
        Ok(Self {
            client,
            namespace: arguments.namespace.clone(),
            system_namespace,
            api: SocketAddr::new(address, PORT),
            key: String::from_utf8(key.0)?,
        })
    }
}

/// The running pod with these labels.
async fn running(client: &Client, namespace: &str, labels: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let found = pods.list(&ListParams::default().labels(labels)).await?;
    let runs = |pod: &Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    found.items.into_iter().find(runs).with_context(|| format!("no running pod with {labels} in {namespace}"))
}

/// Measures, and removes what was made for it.
///
/// # Errors
/// When there is no cluster, or something did not work there.
pub async fn measure(arguments: &Arguments, table: &mut Table) -> Result<()> {
    let cluster = Cluster::find(arguments).await?;
    let made = objects::Made::new(&cluster);
    let measured = with(arguments, &cluster, &made, table).await;
    let removed = made.remove(&cluster).await.context("the benchmark's objects could not be removed");
    measured.and(removed)
}

async fn with(arguments: &Arguments, cluster: &Cluster, made: &objects::Made, table: &mut Table) -> Result<()> {
    let before = memory::control(cluster).await?;
    let ready = made.agents_ready(arguments.agents).await?;
    table.section(format!("cluster: {} agents applied one after the other", arguments.agents));
    sessions::percentiles(table, "apply → Agent Ready", &ready, None, None);
    let engine = sessions::measure(cluster, made, arguments.sessions, table).await?;
    memory::rows(table, &before, &memory::control(cluster).await?, &engine);
    images::rows(table)
}
