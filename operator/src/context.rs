//! What all controllers share.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Resource};
use serde::Serialize;

use crate::config::Settings;
use crate::error::Error;
use crate::events::Teller;
use crate::feed::client::ApiClient;
use crate::feed::state::FeedState;
use crate::metrics::Metrics;
use crate::status::{StatusWriter, Urgency, Written};
use crate::worker_address::WorkerAddress;

/// What all controllers share.
pub struct Shared {
    /// Kubernetes.
    pub client: Client,
    /// Flags.
    pub settings: Settings,
    /// What the API server has told.
    pub feed: Arc<FeedState>,
    /// The API server.
    pub api: ApiClient,
    /// Writes status.
    pub status: StatusWriter,
    /// Tells events.
    pub teller: Teller,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// The API server's address for pods.
    pub worker: WorkerAddress,
}

impl Shared {
    /// Writes a status if it differs; how long to wait if it must wait.
    ///
    /// # Errors
    /// When the Kubernetes API refuses.
    pub async fn write<K: Resource<DynamicType = ()>>(
        &self,
        meta: &ObjectMeta,
        old: &(impl Serialize + Sync),
        new: &(impl Serialize + Sync),
        urgency: Urgency,
    ) -> Result<(Written, Option<Duration>), Error> {
        let written = self.status.write::<K>(&self.client, meta, old, new, urgency).await?;
        if written == Written::Yes {
            let kind = ["Model", "Agent", "Run", "Sandbox"].into_iter().find(|kind| *kind == K::kind(&()));
            self.metrics.status_written(kind.unwrap_or("Other"));
        }
        let wait = match written {
            Written::Later(wait) => Some(wait),
            Written::Yes | Written::Unchanged => None,
        };
        Ok((written, wait))
    }
}

/// The present, for conditions.
#[must_use]
pub fn now() -> Time {
    // Kubernetes keeps whole seconds.
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
