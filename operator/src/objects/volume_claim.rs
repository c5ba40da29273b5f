//! The volume of a workspace that outlives its pod. It goes with its Sandbox.

use cadre_crds::sandbox::Sandbox;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::labels;

/// Its name.
#[must_use]
pub fn name(sandbox: &Sandbox) -> String {
    format!("{}-workspace", sandbox.name_any())
}

/// Builds it.
#[must_use]
pub fn build(sandbox: &Sandbox) -> PersistentVolumeClaim {
    let workspace = &sandbox.spec.template.workspace;
    PersistentVolumeClaim {
        metadata: labels::owned(sandbox, name(sandbox)),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: workspace.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), Quantity(workspace.size.clone()))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
