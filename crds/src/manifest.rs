//! The CRDs as Kubernetes wants them: generated from the types, completed with what derive macros can't say.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{agent::Agent, model::Model, run::Run, sandbox::Sandbox};

/// API group of all kinds.
pub const GROUP: &str = "cadre.dev";

/// A generated CRD.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// Plural name: the file is called after it.
    pub plural: &'static str,
    /// The object.
    pub object: Value,
}

/// All CRDs.
///
/// # Errors
/// When a type does not serialize: a bug that the tests of this crate show.
pub fn all() -> Result<Vec<Manifest>, serde_json::Error> {
    Ok(vec![
        manifest("agents", Agent::crd())?,
        manifest("models", Model::crd())?,
        manifest("runs", Run::crd())?,
        manifest("sandboxes", Sandbox::crd())?,
    ])
}

fn manifest(plural: &'static str, crd: CustomResourceDefinition) -> Result<Manifest, serde_json::Error> {
    let mut object = serde_json::to_value(crd)?;
    object["metadata"]["annotations"] = json!({ "helm.sh/resource-policy": "keep" });
    let schema = &mut object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    // A new object must never look ready: kstatus compares observedGeneration with generation.
    schema["properties"]["status"]["default"] = json!({ "observedGeneration": -1 });
    schema["x-kubernetes-validations"] = json!([{
        "rule": "self.metadata.name.size() <= 52 && !self.metadata.name.contains('.')",
        "message": "the name must be a DNS label of at most 52 characters, without dots: names of pods and API ids are made from it",
    }]);
    Ok(Manifest { plural, object })
}
