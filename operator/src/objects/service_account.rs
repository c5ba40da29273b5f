//! The ServiceAccount of agent pods: an identity without rights.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::labels;

/// Its name in each namespace.
pub const NAME: &str = "cadre-agent";

/// Builds it.
#[must_use]
pub fn build(namespace: &str) -> ServiceAccount {
    ServiceAccount {
        metadata: labels::shared(namespace, NAME),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
