//! Runs whose objects are gone are cancelled: at once when the deletion is seen, else by the next sweep.

use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::feed::RunReport;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::caches::Caches;
use crate::context::Shared;
use crate::feed::follow::chain;

/// Time between sweeps.
const SWEEP: Duration = Duration::from_secs(30);

/// Watches for such runs until told to stop.
pub async fn follow(
    shared: Arc<Shared>,
    caches: Arc<Caches>,
    mut deleted: UnboundedReceiver<ObjectMeta>,
    stop: CancellationToken,
) {
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(meta) = deleted.recv() => object_deleted(&shared, &meta).await,
            _ = sweep.tick() => {
                shared.feed.forget_ended(|run| is_orphan(&caches, run));
                for run in shared.feed.unfinished() {
                    if is_orphan(&caches, &run) {
                        cancel(&shared, &run.namespace, &run.uid).await;
                    }
                }
            }
        }
    }
}

async fn object_deleted(shared: &Shared, meta: &ObjectMeta) {
    let (Some(namespace), Some(uid)) = (&meta.namespace, &meta.uid) else { return };
    match shared.feed.run(uid) {
        Some(run) if run.status.is_terminal() => shared.feed.forget_run(uid),
        // Unknown here may be known there: a submission may be under way.
        Some(_) | None => cancel(shared, namespace, uid).await,
    }
}

/// Whether a run's object is gone, or replaced by another of the same name.
fn is_orphan(caches: &Caches, run: &RunReport) -> bool {
    let object = caches.runs.get(&ObjectRef::new(&run.name).within(&run.namespace));
    caches.covers(&run.namespace) && object.is_none_or(|object| object.uid().as_deref() != Some(&run.uid))
}

async fn cancel(shared: &Shared, namespace: &str, uid: &str) {
    match shared.api.cancel(namespace, uid).await {
        Ok(_) => tracing::info!(namespace, uid, "cancelled a run whose object is gone"),
        Err(error) => {
            tracing::warn!(namespace, uid, error = %chain(&error), "could not cancel a run; the sweep tries again")
        }
    }
}
