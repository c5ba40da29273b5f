//! Credentials of `cadre dev`: Secret manifests of the folder, else the providers' usual variables.

use async_trait::async_trait;
use cadre_api::catalog::secrets::FolderSecrets;
use cadre_crds::model::Provider;
use cadre_gateway::{Credential, CredentialError, Credentials};
use secrecy::SecretString;

/// A variable with a key, and the one host that the key is for.
struct Variable {
    provider: Provider,
    name: &'static str,
    host: &'static str,
}

const VARIABLES: [Variable; 2] = [
    Variable { provider: Provider::OpenAI, name: "OPENAI_API_KEY", host: "api.openai.com" },
    Variable { provider: Provider::Anthropic, name: "ANTHROPIC_API_KEY", host: "api.anthropic.com" },
];

/// Both sources.
pub struct DevCredentials {
    folder: FolderSecrets,
    keys: Vec<(Provider, Credential)>,
}

impl DevCredentials {
    /// With the keys that `variable` has.
    pub fn new(folder: FolderSecrets, variable: impl Fn(&str) -> Option<String>) -> Self {
        let key = |Variable { provider, name, host }| {
            let value = variable(name).filter(|value| !value.trim().is_empty())?;
            let value = SecretString::from(value.trim().to_owned());
            Some((provider, Credential { value, hosts: Some(vec![host.to_owned()]), labelled: true }))
        };
        Self { folder, keys: VARIABLES.into_iter().filter_map(key).collect() }
    }

    /// The key for a Secret that is not there, by the Models that name it.
    fn variable_for(&self, namespace: &str, secret: &str) -> Option<Credential> {
        let manifests = self.folder.0.manifests();
        let mut models =
            manifests.specs.models.iter().filter(|((of, _), _)| of == namespace).map(|(_, model)| &model.spec);
        models.find_map(|model| {
            let names_it = model.auth.as_ref().is_some_and(|auth| auth.secret_ref.name == secret);
            let key = self.keys.iter().find(|(provider, _)| names_it && *provider == model.provider);
            key.map(|(_, credential)| credential.clone())
        })
    }
}

#[async_trait]
impl Credentials for DevCredentials {
    async fn get(&self, namespace: &str, secret: &str, key: &str) -> Result<Credential, CredentialError> {
        match self.folder.get(namespace, secret, key).await {
            Err(CredentialError::MissingSecret) => {
                self.variable_for(namespace, secret).ok_or(CredentialError::MissingSecret)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use cadre_api::catalog::folder::FolderCatalog;
    use secrecy::ExposeSecret as _;

    use super::*;

    const FOLDER: &str = r#"
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {name: gpt}
spec: {provider: OpenAI, model: gpt, auth: {secretRef: {name: openai, key: api-key}}}
---
apiVersion: cadre.dev/v1alpha1
kind: Model
metadata: {name: own}
spec: {provider: OpenAI, model: gpt, auth: {secretRef: {name: own, key: api-key}}}
---
apiVersion: v1
kind: Secret
metadata: {name: own, labels: {cadre.dev/credential: "true"}}
stringData: {api-key: from-the-folder}
"#;

    #[tokio::test]
    async fn the_folder_goes_before_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), FOLDER).unwrap();
        let catalog = FolderCatalog::open(folder.path(), "default").unwrap();
        let variable = |name: &str| (name == "OPENAI_API_KEY").then(|| " from-the-environment ".to_owned());
        let credentials = DevCredentials::new(FolderSecrets(catalog), variable);
        let own = credentials.get("default", "own", "api-key").await.unwrap();
        assert_eq!(own.value.expose_secret(), "from-the-folder");
        let usual = credentials.get("default", "openai", "api-key").await.unwrap();
        assert_eq!(usual.value.expose_secret(), "from-the-environment");
        assert_eq!(usual.hosts.as_deref(), Some(&["api.openai.com".to_owned()][..]));
        for (namespace, secret, key) in
            [("default", "other", "api-key"), ("team-a", "openai", "api-key"), ("default", "own", "x")]
        {
            assert!(credentials.get(namespace, secret, key).await.is_err(), "{namespace}/{secret}/{key}");
        }
    }
}
