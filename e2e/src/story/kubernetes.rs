//! The Kubernetes API, through `kubectl proxy`: looking often costs next to nothing.

use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::Value;

use super::LIMIT;
use super::forward::Forward;
use super::http::{Request, send};
use crate::cluster::Cluster;
use crate::wait;

/// Who applies what tests write.
const MANAGER: &str = "e2e";

/// A client. Clones share the way in.
#[derive(Debug, Clone)]
pub struct Kubernetes(Arc<Forward>);

impl Kubernetes {
    /// With the rights of the kubeconfig.
    ///
    /// # Errors
    /// When kubectl opens no port.
    pub fn connect(cluster: &Cluster) -> Result<Self> {
        Ok(Self(Arc::new(Forward::to_kubernetes(cluster)?)))
    }

    /// Path of a kind's objects.
    #[must_use]
    pub fn path(namespace: &str, plural: &str) -> String {
        let group = match plural {
            "models" | "agents" | "runs" | "sandboxes" => "/apis/cadre.dev/v1alpha1",
            "deployments" | "statefulsets" => "/apis/apps/v1",
            "networkpolicies" => "/apis/networking.k8s.io/v1",
            _ => "/api/v1",
        };
        format!("{group}/namespaces/{namespace}/{plural}")
    }

    /// Reads a path.
    ///
    /// # Errors
    /// When it is refused.
    pub fn get(&self, path: &str) -> Result<Value> {
        send(self.0.address(), &Request { method: "GET", path, headers: &[], body: &[] })?.json()
    }

    /// Reads text, for example metrics or a log.
    ///
    /// # Errors
    /// When it breaks off.
    pub fn text(&self, path: &str) -> Result<String> {
        send(self.0.address(), &Request { method: "GET", path, headers: &[], body: &[] })?.text()
    }

    /// An object; none when it does not exist.
    ///
    /// # Errors
    /// When it is refused.
    pub fn object(&self, namespace: &str, plural: &str, name: &str) -> Result<Option<Value>> {
        let path = format!("{}/{name}", Self::path(namespace, plural));
        let answer = send(self.0.address(), &Request { method: "GET", path: &path, headers: &[], body: &[] })?;
        if answer.status == 404 { Ok(None) } else { answer.json().map(Some) }
    }

    /// Applies an object server-side.
    ///
    /// # Errors
    /// When it is refused: with Kubernetes' message.
    pub fn apply(&self, namespace: &str, object: &Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{}/{name}?fieldManager={MANAGER}&force=true", Self::path_of(namespace, object));
        self.write("PATCH", &path, "application/apply-patch+yaml", object)
    }

    /// Creates an object as kubectl does: fields that nobody knows are refused.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn create(&self, namespace: &str, object: &Value) -> Result<()> {
        let path = format!("{}?fieldManager={MANAGER}&fieldValidation=Strict", Self::path_of(namespace, object));
        self.write("POST", &path, "application/json", object)
    }

    fn path_of(namespace: &str, object: &Value) -> String {
        match object["kind"].as_str().unwrap_or_default() {
            "Sandbox" => Self::path(namespace, "sandboxes"),
            kind => Self::path(namespace, &format!("{}s", kind.to_lowercase())),
        }
    }

    /// Changes some fields.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn merge(&self, namespace: &str, plural: &str, name: &str, patch: &Value) -> Result<()> {
        let path = format!("{}/{name}?fieldManager={MANAGER}", Self::path(namespace, plural));
        self.write("PATCH", &path, "application/merge-patch+json", patch)
    }

    /// Deletes an object, with options.
    ///
    /// # Errors
    /// When it is refused.
    pub fn delete(&self, namespace: &str, plural: &str, name: &str, options: &Value) -> Result<()> {
        let plural = if plural == "sandboxs" { "sandboxes" } else { plural };
        self.write("DELETE", &format!("{}/{name}", Self::path(namespace, plural)), "application/json", options)
    }

    fn write(&self, method: &str, path: &str, media_type: &str, body: &Value) -> Result<()> {
        let headers = [("Content-Type", media_type)];
        let body = body.to_string();
        let answer = send(self.0.address(), &Request { method, path, headers: &headers, body: body.as_bytes() })?;
        let status = answer.status;
        if (200..300).contains(&status) {
            return Ok(());
        }
        let text = answer.text()?;
        let message =
            serde_json::from_str::<Value>(&text).ok().and_then(|status| status["message"].as_str().map(str::to_owned));
        bail!("{}", message.unwrap_or(text))
    }

    /// Looks at an object until it is as wanted.
    ///
    /// # Errors
    /// When it doesn't become so in time: with its status.
    pub fn wait(
        &self,
        namespace: &str,
        plural: &str,
        name: &str,
        what: &str,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = Value::Null;
        let waited = wait::until(&format!("{plural}/{name} {what}"), LIMIT, "it is as below", || {
            last = self.object(namespace, plural, name)?.unwrap_or_default();
            Ok(!last.is_null() && is_it(&last))
        });
        match waited {
            Ok(()) => Ok(last),
            Err(error) => bail!("{error}\n{:#}", last["status"]),
        }
    }

    /// Looks until an object is gone.
    ///
    /// # Errors
    /// When it isn't in time.
    pub fn gone(&self, namespace: &str, plural: &str, name: &str) -> Result<()> {
        wait::until(&format!("{plural}/{name} to be gone"), LIMIT, "kubectl describe tells", || {
            Ok(self.object(namespace, plural, name)?.is_none())
        })
    }
}
