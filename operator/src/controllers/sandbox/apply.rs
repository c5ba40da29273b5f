//! Creates and removes pods.

use std::sync::Arc;

use cadre_crds::common::reasons::Reason;
use cadre_crds::sandbox::Sandbox;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};

use super::prerequisites::{MANAGER, Prerequisites};
use super::status::View;
use crate::caches::Caches;
use crate::context::Shared;
use crate::error::{Error, code, kubernetes};
use crate::objects::labels;
use crate::objects::pod::{self, PodSettings};

/// Creates and removes pods of a scope.
pub struct Applier {
    shared: Arc<Shared>,
    caches: Arc<Caches>,
    prerequisites: Prerequisites,
}

impl Applier {
    /// For a scope.
    #[must_use]
    pub fn new(shared: Arc<Shared>, caches: Arc<Caches>) -> Self {
        let prerequisites = Prerequisites::new(shared.clone(), caches.clone());
        Self { shared, caches, prerequisites }
    }

    /// Creates the present incarnation's pod, after all that it needs. In a namespace with pods this is one request.
    ///
    /// # Errors
    /// When the Kubernetes API does not answer as expected.
    pub async fn create(&self, sandbox: &Sandbox) -> Result<View, Error> {
        let waiting = |reason, message| Ok(View::Waiting { reason, message });
        let api = match self.shared.worker.endpoint().await {
            Ok(api) => api,
            Err(error) => {
                let message = format!("can't look up the API server {}: {error}", self.shared.settings.worker_url);
                return waiting(Reason::ApiServerUnavailable, message);
            }
        };
        if let Some(why) = self.prerequisites.ensure(sandbox).await? {
            return waiting(Reason::Progressing, why.to_owned());
        }
        let wanted = pod::build(sandbox, &PodSettings::new(&self.shared.settings, api));
        let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        match self.api(sandbox).create(&params, &wanted).await {
            Ok(created) => {
                self.caches.pods.created(created.clone());
                Ok(View::Pod(Arc::new(created)))
            }
            Err(error) => match (code(&error), &error) {
                (409, _) => match self.find(sandbox).await? {
                    Some(pod) => Ok(View::Pod(pod)),
                    None => waiting(Reason::Progressing, "a pod of this name is being removed".to_owned()),
                },
                (422, kube::Error::Api(status)) => Ok(View::Invalid(status.message.clone())),
                // A quota, an admission policy, or a namespace that is being deleted.
                (403, kube::Error::Api(status)) => waiting(Reason::PodFailed, status.message.clone()),
                _ => Err(kubernetes("create a pod")(error)),
            },
        }
    }

    /// Puts back what holds for pods that are there: the account, the closed network, and what the mode opens if the
    /// Sandbox is as it may be.
    ///
    /// # Errors
    /// When the Kubernetes API refuses.
    pub async fn guard(&self, sandbox: &Sandbox, is_valid: bool) -> Result<(), Error> {
        self.prerequisites.closed(sandbox).await?;
        if is_valid { self.prerequisites.opened(sandbox).await } else { Ok(()) }
    }

    /// Asks for the present incarnation's pod, past the cache.
    ///
    /// # Errors
    /// When the Kubernetes API does not answer.
    pub async fn find(&self, sandbox: &Sandbox) -> Result<Option<Arc<Pod>>, Error> {
        let name = pod::name(&sandbox.name_any(), sandbox.spec.incarnation);
        let pod = self.api(sandbox).get_opt(&name).await.map_err(kubernetes("look at a pod"))?;
        let uid = sandbox.uid().unwrap_or_default();
        Ok(pod.filter(|pod| labels::is_owned_by(&pod.metadata, &uid)).map(Arc::new))
    }

    /// Removes a pod: in good order, or at once when it is told already and its node is lost.
    ///
    /// # Errors
    /// When the Kubernetes API refuses.
    pub async fn remove(&self, pod: &Pod) -> Result<(), Error> {
        let told = pod.metadata.deletion_timestamp.is_some();
        if told && !self.node_is_lost(pod).await {
            return Ok(());
        }
        let api: Api<Pod> = Api::namespaced(self.shared.client.clone(), &pod.namespace().unwrap_or_default());
        let params = DeleteParams {
            grace_period_seconds: told.then_some(0),
            preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
            ..DeleteParams::background()
        };
        match api.delete(&pod.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(code(&error), 404 | 409) => Ok(()),
            Err(error) => Err(kubernetes("delete a pod")(error)),
        }
    }

    /// Whether nobody can carry out the deletion. Without the right to look at nodes none counts as lost.
    async fn node_is_lost(&self, pod: &Pod) -> bool {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else { return false };
        match Api::<Node>::all(self.shared.client.clone()).get_opt(node).await {
            Ok(node) => node.is_none_or(|node| is_unreachable(&node)),
            Err(error) => {
                tracing::debug!(%error, node, "could not look at a node");
                false
            }
        }
    }

    fn api(&self, sandbox: &Sandbox) -> Api<Pod> {
        Api::namespaced(self.shared.client.clone(), &sandbox.namespace().unwrap_or_default())
    }
}

fn is_unreachable(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| {
        matches!(taint.key.as_str(), "node.kubernetes.io/unreachable" | "node.kubernetes.io/out-of-service")
    })
}
