//! Which model answers: the scripted one of the example, or a real one from the environment.

use std::env;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Manifests of a real model. JSON, which kubectl reads as well.
pub struct Model {
    /// Secret with the key.
    pub secret: String,
    /// Model, under the name that the example's agent uses.
    pub model: String,
}

const NAME: &str = "quickstart";
const SECRET: &str = "quickstart-model";
const KEY: &str = "api-key";

/// The model that the environment asks for: `MODEL_BASE_URL` (with `MODEL_NAME`, `MODEL_API_KEY`), `OPENAI_API_KEY`, or
/// `ANTHROPIC_API_KEY`. `MODEL_NAME` replaces the default name of each.
///
/// # Errors
/// When `MODEL_BASE_URL` has no host, or is given without `MODEL_NAME`.
pub fn from_environment() -> Result<Option<Model>> {
    let read = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let name = read("MODEL_NAME");
    if let Some(url) = read("MODEL_BASE_URL") {
        let name = name.context("MODEL_BASE_URL needs MODEL_NAME: the model's name at that server")?;
        let host = host(&url)?;
        let spec = json!({ "provider": "OpenAICompatible", "model": name, "baseUrl": url });
        return Ok(Some(manifests(spec, read("MODEL_API_KEY"), Some(&host))));
    }
    for (variable, provider, default) in
        [("OPENAI_API_KEY", "OpenAI", "gpt-5.6-luna"), ("ANTHROPIC_API_KEY", "Anthropic", "claude-sonnet-4-6")]
    {
        if let Some(key) = read(variable) {
            let spec = json!({ "provider": provider, "model": name.as_deref().unwrap_or(default) });
            return Ok(Some(manifests(spec, Some(key), None)));
        }
    }
    Ok(None)
}

fn host(url: &str) -> Result<String> {
    let rest = url.split_once("://").map(|(_, rest)| rest).context("MODEL_BASE_URL must be http(s)://host/path")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    anyhow::ensure!(!host.is_empty(), "MODEL_BASE_URL has no host");
    Ok(host.to_owned())
}

fn manifests(mut spec: Value, key: Option<String>, host: Option<&str>) -> Model {
    if key.is_some() {
        spec["auth"] = json!({ "secretRef": { "name": SECRET, "key": KEY } });
    }
    let mut metadata = json!({ "name": SECRET, "labels": { "cadre.dev/credential": "true" } });
    if let Some(host) = host {
        metadata["annotations"] = json!({ "cadre.dev/hosts": host });
    }
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { KEY: key.unwrap_or_default() }
    });
    let model = json!({
        "apiVersion": "cadre.dev/v1alpha1", "kind": "Model", "metadata": { "name": NAME }, "spec": spec
    });
    Model { secret: secret.to_string(), model: model.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_only_to_the_host_that_was_given() {
        assert_eq!(host("http://10.0.0.1:8000/v1").unwrap(), "10.0.0.1");
        assert!(host("models.example.com").is_err());
        let spec = json!({ "provider": "OpenAICompatible", "model": "m", "baseUrl": "http://h/v1" });
        let made = manifests(spec, Some("k".into()), Some("h"));
        let secret: Value = serde_json::from_str(&made.secret).unwrap();
        assert_eq!(secret["metadata"]["annotations"]["cadre.dev/hosts"], "h");
        assert!(!made.model.contains("\"k\""));
    }
}
