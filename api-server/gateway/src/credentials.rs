//! Which Secret may go where (security rule 5).
//!
//! A Secret leaves the cluster only if it carries the label, and only to the provider's own host or to hosts that it
//! names itself. The check runs before each attempt, on what the [`Credentials`] say at that time.

use async_trait::async_trait;
use cadre_protocol::feed::CredentialState;
use cadre_protocol::model::{ModelError, ModelErrorCategory};
use secrecy::SecretString;
use url::Url;

use crate::config::{AuthConfig, ModelConfig, Provider};
use crate::failure::failure;
use crate::hosts;

/// A key of a Secret and what the Secret says about its use.
#[derive(Debug, Clone)]
pub struct Credential {
    /// The value.
    pub value: SecretString,
    /// Annotation `cadre.dev/hosts`, split at commas.
    pub hosts: Option<Vec<String>>,
    /// Whether it has the label `cadre.dev/credential: "true"`.
    pub labelled: bool,
}

/// Why there is no credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// There is no such Secret.
    #[error("the secret does not exist")]
    MissingSecret,
    /// The Secret has no such key.
    #[error("the secret lacks the key")]
    MissingKey,
    /// It can't be read at the moment.
    #[error("the secret can't be read now")]
    Unavailable,
}

/// Reads Secrets. What changes must be seen within 5 seconds; the gateway itself keeps nothing.
#[async_trait]
pub trait Credentials: Send + Sync {
    /// The value of `key` in `secret`.
    ///
    /// # Errors
    /// If it is missing or can't be read.
    async fn get(&self, namespace: &str, secret: &str, key: &str) -> Result<Credential, CredentialError>;
}

/// A credential that may not be used, and what mends that.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) state: CredentialState,
    pub(crate) message: String,
    temporary: bool,
}

impl From<Denied> for ModelError {
    fn from(denied: Denied) -> Self {
        let category = if denied.temporary { ModelErrorCategory::Network } else { ModelErrorCategory::Authentication };
        failure(category, denied.message)
    }
}

/// The model's key for a request to `destination`; none if the Model has no auth.
pub(crate) async fn resolve(
    source: &dyn Credentials,
    model: &ModelConfig,
    destination: &Url,
) -> Result<Option<SecretString>, Denied> {
    let own = is_own_host(model.provider, destination);
    let Some(auth) = &model.auth else {
        return if own { Err(no_auth(model)) } else { Ok(None) };
    };
    let credential = source
        .get(&model.namespace, &auth.secret_name, &auth.secret_key)
        .await
        .map_err(|error| missing(model, auth, destination, own, error))?;
    let secret = format!("Secret {}/{}", model.namespace, auth.secret_name);
    if !credential.labelled {
        return Err(denied(
            CredentialState::NotAllowed,
            format!(
                "{secret} is not labelled as a credential: kubectl label secret {} -n {} cadre.dev/credential=true",
                auth.secret_name, model.namespace
            ),
        ));
    }
    let permitted = match &credential.hosts {
        Some(list) => hosts::allowed(list, destination),
        None => own,
    };
    if permitted { Ok(Some(credential.value)) } else { Err(wrong_host(model, auth, destination, credential.hosts)) }
}

/// Whether `url` is the provider's own endpoint: its host, by TLS, on the usual port.
fn is_own_host(provider: Provider, url: &Url) -> bool {
    provider.default_base().and_then(|base| Url::parse(base).ok()).is_some_and(|base| base.origin() == url.origin())
}

fn denied(state: CredentialState, message: String) -> Denied {
    Denied { state, message, temporary: false }
}

fn no_auth(model: &ModelConfig) -> Denied {
    denied(
        CredentialState::Missing,
        format!(
            "Model {}/{} has no spec.auth, and {} needs a key",
            model.namespace,
            model.name,
            model.provider.as_str()
        ),
    )
}

fn missing(model: &ModelConfig, auth: &AuthConfig, url: &Url, own: bool, error: CredentialError) -> Denied {
    let secret = format!("Secret {}/{}", model.namespace, auth.secret_name);
    let hosts = if own { String::new() } else { format!(" --hosts {}", url.host_str().unwrap_or_default()) };
    let create = format!(
        "kubectl cadre credential create {} -n {} --from-env VARIABLE --key {}{hosts}",
        auth.secret_name, model.namespace, auth.secret_key
    );
    match error {
        CredentialError::MissingSecret => {
            denied(CredentialState::Missing, format!("{secret} does not exist: {create}"))
        }
        CredentialError::MissingKey => {
            denied(CredentialState::Missing, format!("{secret} has no key {:?}: {create}", auth.secret_key))
        }
        CredentialError::Unavailable => Denied {
            state: CredentialState::Missing,
            message: format!("{secret} can't be read at the moment"),
            temporary: true,
        },
    }
}

fn wrong_host(model: &ModelConfig, auth: &AuthConfig, url: &Url, hosts: Option<Vec<String>>) -> Denied {
    let host = url.host_str().unwrap_or_default();
    let mut list = hosts.unwrap_or_default();
    list.push(host.to_owned());
    denied(
        CredentialState::NotAllowed,
        format!(
            "Secret {ns}/{name} may not go to {host}: kubectl annotate secret {name} -n {ns} --overwrite \
             cadre.dev/hosts={}",
            list.join(","),
            ns = model.namespace,
            name = auth.secret_name,
        ),
    )
}
