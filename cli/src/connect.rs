//! Finds the API server: where the user says it is, or through the user's kubeconfig.

use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::path::PathBuf;

use crate::api::{Api, CallError};
use crate::forward::PortForward;
use crate::transport::{InvalidServer, Transport};

/// Secret with the API's key.
const KEY_SECRET: &str = "cadre-api-key";
/// Its key.
const KEY_NAME: &str = "OS_SECURITY_KEY";

/// Where the API server is, and which namespace is meant.
#[derive(Debug, Clone, Args)]
pub struct Connection {
    /// URL of the API server. Without it: a port-forward into the cluster of the kubeconfig.
    #[arg(long, env = "CADRE_SERVER", global = true, value_name = "URL")]
    pub server: Option<String>,
    /// Bearer token of the API. Without it: from Secret cadre-api-key, where you may read it.
    #[arg(long, env = "CADRE_TOKEN", global = true, hide_env_values = true)]
    pub token: Option<String>,
    /// Namespace.
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
    /// Path of the kubeconfig.
    #[arg(long, global = true, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace that Cadre is installed in.
    #[arg(long, global = true, default_value = "cadre-system", value_name = "NAMESPACE")]
    pub system_namespace: String,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL.
    #[error(transparent)]
    Server(#[from] InvalidServer),
    /// The kubeconfig.
    #[error(
        "{0}\nThere is no cluster to go to: give --server URL (for `cadre dev`: --server http://127.0.0.1:7777), \
         or a kubeconfig."
    )]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The client.
    #[error("the cluster can't be reached: {0}")]
    Kube(#[from] Box<kube::Error>),
    /// The key.
    #[error(
        "Secret {KEY_SECRET} in namespace {namespace} can't be read ({reason}): give the API's key with --token or \
         CADRE_TOKEN"
    )]
    Key {
        /// Namespace.
        namespace: String,
        /// Why.
        reason: String,
    },
    /// The token.
    #[error(transparent)]
    Token(#[from] CallError),
    /// A command that needs objects.
    #[error("{0} needs a cluster: leave out --server and CADRE_SERVER")]
    NeedsCluster(&'static str),
}

/// The user's cluster.
pub struct Cluster {
    /// Its client.
    pub client: Client,
    /// The namespace that is meant.
    pub namespace: String,
}

/// A server, found.
pub struct Server {
    /// Its API.
    pub api: Api,
    /// The namespace that is meant; the server's default one when none.
    pub namespace: Option<String>,
    /// The cluster, where it was found through one.
    pub cluster: Option<Cluster>,
}

impl Server {
    /// The API's id of an agent that the user named.
    #[must_use]
    pub fn agent_id(&self, name: &str) -> String {
        agent_id(name, self.namespace.as_deref())
    }
}

/// `agent/NAME`, `agents/NAME`, `NAME`: all the same. A name with a dot has its namespace in it.
#[must_use]
pub fn agent_id(name: &str, namespace: Option<&str>) -> String {
    let name = name.strip_prefix("agent/").or_else(|| name.strip_prefix("agents/")).unwrap_or(name);
    match namespace {
        Some(namespace) if !name.contains('.') => format!("{namespace}.{name}"),
        _ => name.to_owned(),
    }
}

impl Connection {
    /// Finds the server.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn server(&self) -> Result<Server, ConnectError> {
        if let Some(server) = &self.server {
            let api = Api::new(Transport::direct(server)?, self.token.as_deref())?;
            return Ok(Server { api, namespace: self.namespace.clone(), cluster: None });
        }
        let cluster = self.find_cluster().await?;
        let token = match &self.token {
            Some(token) => token.clone(),
            None => self.key(&cluster.client).await?,
        };
        let place = format!("the API server in namespace {}", self.system_namespace);
        let forward = PortForward::new(cluster.client.clone(), &self.system_namespace);
        let api = Api::new(Transport::forward(place, forward), Some(&token))?;
        Ok(Server { api, namespace: Some(cluster.namespace.clone()), cluster: Some(cluster) })
    }

    /// The cluster, for a command that works on objects.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn cluster(&self, what: &'static str) -> Result<Cluster, ConnectError> {
        if self.server.is_some() {
            return Err(ConnectError::NeedsCluster(what));
        }
        self.find_cluster().await
    }

    async fn find_cluster(&self) -> Result<Cluster, ConnectError> {
        let kubeconfig = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)?,
            None => Kubeconfig::read()?,
        };
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(Box::new)?;
        Ok(Cluster { client, namespace })
    }

    async fn key(&self, client: &Client) -> Result<String, ConnectError> {
        let no_key = |reason: String| ConnectError::Key { namespace: self.system_namespace.clone(), reason };
        let secrets: kube::Api<Secret> = kube::Api::namespaced(client.clone(), &self.system_namespace);
        let secret = secrets.get(KEY_SECRET).await.map_err(|error| no_key(reason(&error)))?;
        let value = secret.data.and_then(|mut data| data.remove(KEY_NAME));
        let value = value.ok_or_else(|| no_key(format!("it has no key {KEY_NAME}")))?;
        String::from_utf8(value.0).map_err(|_| no_key("its value is no text".to_owned()))
    }
}

fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => "you may not read it".to_owned(),
        kube::Error::Api(status) if status.code == 404 => "there is none".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_named_as_in_kubectl() {
        for (name, namespace, id) in [
            ("agent/helper", None, "helper"),
            ("agents/helper", Some("team-a"), "team-a.helper"),
            ("helper", Some("default"), "default.helper"),
            ("agent/team-b.helper", Some("team-a"), "team-b.helper"),
        ] {
            assert_eq!(agent_id(name, namespace), id);
        }
    }
}
