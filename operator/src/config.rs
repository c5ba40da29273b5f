//! What the operator is told at its start.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;
use url::Url;

/// Flags and environment of the operator.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Worker port of the API server, for example `http://cadre-api.cadre-system.svc:7780`.
    #[arg(long, env = "CADRE_WORKER_URL", value_parser = worker_url)]
    pub worker_url: Url,
    /// File with the operator's token for the API server; read at each request, because kubelet rotates it.
    #[arg(long, env = "CADRE_TOKEN_FILE", default_value = "/var/run/secrets/cadre/token")]
    pub token_file: PathBuf,
    /// Namespace of the operator and of the API server.
    #[arg(long, env = "CADRE_NAMESPACE", default_value = "cadre-system")]
    pub namespace: String,
    /// Name of this replica, unique among replicas.
    #[arg(long, env = "POD_NAME", default_value = "cadre-operator")]
    pub identity: String,
    /// Namespace whose agents have API ids without a dot; the same as the API server's.
    #[arg(long, env = "CADRE_DEFAULT_NAMESPACE", default_value = "default")]
    pub default_namespace: String,
    /// Namespaces to look after, comma separated; all when absent.
    #[arg(long, env = "CADRE_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Image with the engine.
    #[arg(long, env = "CADRE_AGENT_IMAGE")]
    pub agent_image: String,
    /// Image of the container for tools, when a Sandbox names none. It contains the engine's program too.
    #[arg(long, env = "CADRE_SANDBOX_IMAGE")]
    pub sandbox_image: String,
    /// Pull policy of these two images: Always, IfNotPresent or Never.
    #[arg(long, env = "CADRE_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    pub image_pull_policy: String,
    /// Labels of the API server's pods, as `key=value`, comma separated.
    #[arg(
        long,
        env = "CADRE_API_POD_LABELS",
        value_delimiter = ',',
        value_parser = label,
        default_value = "app.kubernetes.io/name=cadre,app.kubernetes.io/component=api-server"
    )]
    pub api_pod_labels: Vec<(String, String)>,
    /// Worker port of the API server's pods.
    #[arg(long, env = "CADRE_WORKER_POD_PORT", default_value_t = 7780)]
    pub worker_pod_port: u16,
    /// Addresses of pods, services and nodes, comma separated: what mode Internet must not reach.
    #[arg(long, env = "CADRE_CLUSTER_CIDRS", value_delimiter = ',')]
    pub cluster_cidrs: Vec<IpNet>,
    /// Address of the kube-apiserver that pods must not reach: engines try it before their first tool.
    #[arg(long, env = "KUBERNETES_SERVICE_HOST")]
    pub kubernetes_host: Option<IpAddr>,
    /// Its port.
    #[arg(long, env = "KUBERNETES_SERVICE_PORT", default_value_t = 443)]
    pub kubernetes_port: u16,
    /// Where health and metrics are served.
    #[arg(long, env = "CADRE_OPERATOR_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
}

impl Settings {
    /// Labels by which the network policies know the API server's pods.
    #[must_use]
    pub fn api_labels(&self) -> BTreeMap<String, String> {
        self.api_pod_labels.iter().cloned().collect()
    }

    /// What engines try, to see that the network is closed.
    #[must_use]
    pub fn probe(&self) -> Option<SocketAddr> {
        self.kubernetes_host.map(|host| SocketAddr::new(host, self.kubernetes_port))
    }
}

fn worker_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    match (url.scheme(), url.host_str()) {
        ("http" | "ws", Some(_)) => Ok(url),
        _ => Err("expected http://host:port or ws://host:port".to_owned()),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected key=value")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: Settings,
    }

    const NEEDED: [&str; 7] =
        ["operator", "--worker-url", "http://api:7780", "--agent-image", "a", "--sandbox-image", "s"];

    #[test]
    fn few_flags_are_needed() {
        let settings = Cli::try_parse_from(NEEDED).unwrap().settings;
        assert!(settings.namespaces.is_empty());
        assert_eq!(settings.api_labels()["app.kubernetes.io/component"], "api-server");
    }

    #[test]
    fn addresses_are_parsed_at_the_door() {
        let more = ["--kubernetes-host", "fd00::1", "--cluster-cidrs", "10.0.0.0/8,fd00::/8"];
        let settings = Cli::try_parse_from(NEEDED.into_iter().chain(more)).unwrap().settings;
        assert_eq!(settings.probe().unwrap().to_string(), "[fd00::1]:443");
        assert_eq!(settings.cluster_cidrs.len(), 2);
        for bad in ["unix:/path", "api:7780", "https://api"] {
            assert!(worker_url(bad).is_err(), "{bad}");
        }
    }
}
