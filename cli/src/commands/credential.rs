//! `credential create`: a Secret with the marks without which the gateway does not use it.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};

use crate::connect::{Cluster, Connection};
use crate::failure::Failure;
use crate::render::terminal;

/// Owner of the fields in server-side apply.
const MANAGER: &str = "kubectl-cadre";

/// Credentials for Models and tools
#[derive(Debug, Args)]
pub struct CredentialArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a Secret that Models may use, from an environment variable
    Create(CreateArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Name of the Secret.
    name: String,
    /// Variable with the value. Values are no arguments: other users could read them there.
    #[arg(long, value_name = "VARIABLE")]
    from_env: String,
    /// Key in the Secret.
    #[arg(long, default_value = "api-key")]
    key: String,
    /// Hosts that it may go to, for other servers than the provider's own.
    #[arg(long, value_delimiter = ',', value_name = "HOST,…")]
    hosts: Vec<String>,
    /// Replace the Secret if it is there.
    #[arg(long)]
    replace: bool,
}

/// Does what is asked.
///
/// # Errors
/// When the variable is not set, or the cluster refuses.
pub async fn credential(args: &CredentialArgs, connection: &Connection) -> Result<(), Failure> {
    let Verb::Create(args) = &args.verb;
    let value = std::env::var(&args.from_env).ok().filter(|value| !value.trim().is_empty());
    let value = value.ok_or_else(|| Failure::Other(format!("{} is not set, or empty", args.from_env)))?;
    let Cluster { client, namespace } = connection.cluster("a Secret").await?;
    let secrets: Api<Secret> = Api::namespaced(client, &namespace);
    let secret = secret(args, value.trim());
    if args.replace {
        let params = PatchParams::apply(MANAGER).force();
        secrets.patch(&args.name, &params, &Patch::Apply(&secret)).await.map_err(Box::new)?;
    } else {
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        secrets.create(&params, &secret).await.map_err(|error| exists(error, &args.name, &namespace))?;
    }
    let done = format!("secret/{} {}\n", args.name, if args.replace { "applied" } else { "created" });
    terminal::answer(&done)?;
    let (name, key) = (&args.name, &args.key);
    terminal::note(&format!("In a Model: auth: {{secretRef: {{name: {name}, key: {key}}}}}\n"));
    Ok(())
}

fn secret(args: &CreateArgs, value: &str) -> Secret {
    let pair = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    Secret {
        metadata: ObjectMeta {
            name: Some(args.name.clone()),
            labels: Some(pair("cadre.dev/credential", "true")),
            annotations: (!args.hosts.is_empty()).then(|| pair("cadre.dev/hosts", &args.hosts.join(","))),
            ..ObjectMeta::default()
        },
        string_data: Some(pair(&args.key, value)),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

fn exists(error: kube::Error, name: &str, namespace: &str) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 409 => {
            Failure::Other(format!("secret {name} exists in namespace {namespace}; --replace replaces it"))
        }
        other => Box::new(other).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_has_the_marks_that_the_gateway_wants() {
        let args = CreateArgs {
            name: "openai".into(),
            from_env: "KEY".into(),
            key: "api-key".into(),
            hosts: vec!["a.example".into(), "b.example:8443".into()],
            replace: false,
        };
        let secret = serde_json::to_value(secret(&args, "sk-1")).unwrap();
        assert_eq!(secret["metadata"]["labels"]["cadre.dev/credential"], "true");
        assert_eq!(secret["metadata"]["annotations"]["cadre.dev/hosts"], "a.example,b.example:8443");
        assert_eq!(secret["stringData"]["api-key"], "sk-1");
        let plain = super::secret(&CreateArgs { hosts: vec![], ..args }, "x");
        assert_eq!(plain.metadata.annotations, None);
    }
}
