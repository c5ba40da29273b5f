//! Secrets for the gateway: from a cluster, or from a folder's manifests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cadre_gateway::{Credential, CredentialError, Credentials};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use secrecy::SecretString;
use tokio::time::Instant;

use super::folder::FolderCatalog;

/// Label without which a Secret never leaves the cluster.
pub const LABEL: &str = "cadre.dev/credential";
/// Annotation with the hosts that it may go to.
pub const HOSTS: &str = "cadre.dev/hosts";
/// How long an answer is good; the gateway promises to see changes within five seconds.
const FRESH: Duration = Duration::from_secs(3);
/// Answers that are kept.
const MAX_KEPT: usize = 1_000;

/// The annotation's list.
#[must_use]
pub fn split_hosts(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|host| !host.is_empty()).map(str::to_owned).collect()
}

type Kept = HashMap<(String, String), (Arc<Secret>, Instant)>;

/// Secrets of a cluster, read one by one: the API server watches none.
pub struct ClusterSecrets {
    client: Client,
    kept: Mutex<Kept>,
}

impl ClusterSecrets {
    /// Reads with this client's rights.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, kept: Mutex::default() }
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, CredentialError> {
        let key = (namespace.to_owned(), name.to_owned());
        let now = Instant::now();
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((secret, until)) = kept
            && now < until
        {
            return Ok(secret);
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = api.get_opt(name).await.map_err(|error| {
            // The error's text may name more than a caller should know.
            tracing::warn!(namespace, secret = name, forbidden = is_forbidden(&error), "secret can't be read");
            CredentialError::Unavailable
        })?;
        let secret = Arc::new(secret.ok_or(CredentialError::MissingSecret)?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(key, (secret.clone(), now + FRESH));
        Ok(secret)
    }
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

#[async_trait]
impl Credentials for ClusterSecrets {
    async fn get(&self, namespace: &str, secret: &str, key: &str) -> Result<Credential, CredentialError> {
        let secret = self.secret(namespace, secret).await?;
        let value = secret.data.as_ref().and_then(|data| data.get(key)).ok_or(CredentialError::MissingKey)?;
        let text = String::from_utf8(value.0.clone()).map_err(|_| CredentialError::MissingKey)?;
        let labels = secret.metadata.labels.as_ref();
        let annotations = secret.metadata.annotations.as_ref();
        Ok(Credential {
            value: SecretString::from(text.trim().to_owned()),
            hosts: annotations.and_then(|list| list.get(HOSTS)).map(|hosts| split_hosts(hosts)),
            labelled: labels.and_then(|list| list.get(LABEL)).is_some_and(|value| value == "true"),
        })
    }
}

/// Secrets of a folder.
pub struct FolderSecrets(pub Arc<FolderCatalog>);

#[async_trait]
impl Credentials for FolderSecrets {
    async fn get(&self, namespace: &str, secret: &str, key: &str) -> Result<Credential, CredentialError> {
        let manifests = self.0.manifests();
        let name = (namespace.to_owned(), secret.to_owned());
        let secret = manifests.secrets.get(&name).ok_or(CredentialError::MissingSecret)?;
        let value = secret.values.get(key).ok_or(CredentialError::MissingKey)?;
        Ok(Credential { value: value.clone(), hosts: secret.hosts.clone(), labelled: secret.labelled })
    }
}
