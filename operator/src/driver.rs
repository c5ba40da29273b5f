//! Drives a controller: takes objects from its queue, reconciles them, waits longer after each failure, tells events.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cadre_crds::common::reasons::Reason;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::controller::{Action, Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::conditions::{Conditions, Verdict};
use crate::context::{Shared, now};
use crate::error::Error;
use crate::events::Story;
use crate::feed::follow::chain;
use crate::status::{Urgency, Written};

/// An object as watched: one that can't be read stops nobody.
pub type Guarded<K> = DeserializeGuard<K>;

/// Objects of one kind that are reconciled at once.
const CONCURRENCY: u16 = 64;
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LAST_DELAY: Duration = Duration::from_secs(60);

/// What a reconcile leads to.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// When to look again without a change.
    pub again: Option<Duration>,
    /// What happened.
    pub stories: Vec<Story>,
}

/// A controller.
pub trait Reconciler: Send + Sync + 'static {
    /// Its kind.
    type Kind: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static;
    /// The kind's name, for metrics.
    const KIND: &'static str;

    /// Brings the world closer to an object.
    fn reconcile(&self, object: &Self::Kind) -> impl Future<Output = Result<Outcome, Error>> + Send;
}

/// What all statuses have.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlainStatus {
    observed_generation: Option<i64>,
    conditions: Vec<Condition>,
}

struct Driver<R> {
    reconciler: R,
    shared: Arc<Shared>,
    failures: Mutex<HashMap<String, u32>>,
}

/// Drives a controller until told to stop, then waits for reconciles under way.
pub async fn drive<R: Reconciler>(
    reconciler: R,
    shared: Arc<Shared>,
    store: Store<Guarded<R::Kind>>,
    queue: UnboundedReceiver<ObjectRef<Guarded<R::Kind>>>,
    stop: CancellationToken,
) {
    let driver = Arc::new(Driver { reconciler, shared, failures: Mutex::default() });
    let queue = UnboundedReceiverStream::new(queue).take_until(stop.cancelled_owned()).map(Ok::<_, Infallible>);
    let config = Config::default().concurrency(CONCURRENCY);
    let reconcile =
        |object: Arc<Guarded<R::Kind>>, driver: Arc<Driver<R>>| Box::pin(async move { driver.one(&object).await });
    let error_policy =
        |object: Arc<Guarded<R::Kind>>, error: &Error, driver: Arc<Driver<R>>| driver.failed(&object, error);
    applier(reconcile, error_policy, driver, store, queue, config).for_each(|_| std::future::ready(())).await;
}

impl<R: Reconciler> Driver<R> {
    async fn one(&self, object: &Guarded<R::Kind>) -> Result<Action, Error> {
        let start = Instant::now();
        let result = match &object.0 {
            Ok(object) => self.reconciler.reconcile(object).await,
            Err(invalid) => self.invalid(invalid).await,
        };
        let label = result.as_ref().map_or_else(Error::category, |_| "ok");
        self.shared.metrics.reconciled(R::KIND, label, start.elapsed());
        let Outcome { again, stories } = result?;
        for story in stories {
            self.shared.teller.tell(story, object.object_ref(&()));
        }
        self.forget(object.meta());
        Ok(again.map_or_else(Action::await_change, Action::requeue))
    }

    /// An object that does not fit its type: an older or newer CRD let it in.
    async fn invalid(&self, object: &InvalidObject) -> Result<Outcome, Error> {
        let meta = &object.metadata;
        let generation = meta.generation.unwrap_or_default();
        let old = self.shared.status.latest::<PlainStatus>(meta, None);
        let message = format!("the object can't be read: {}", object.error);
        let conditions = Conditions::of(&old.conditions, generation, &now())
            .verdict(Verdict::Stalled, Reason::InvalidSpec, &message)
            .finish();
        let new = PlainStatus { observed_generation: Some(generation), conditions };
        let (written, _) = self.shared.write::<R::Kind>(meta, &old, &new, Urgency::Now).await?;
        let story = || Story::warning(Reason::InvalidSpec.as_str(), "Read", message);
        Ok(Outcome { again: None, stories: (written == Written::Yes).then(story).into_iter().collect() })
    }

    fn failed(&self, object: &Guarded<R::Kind>, error: &Error) -> Action {
        let uid = object.uid().unwrap_or_default();
        let tries = {
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            let tries = failures.entry(uid.clone()).or_default();
            *tries += 1;
            *tries
        };
        let delay = delay(tries, RandomState::new().hash_one(uid));
        tracing::warn!(
            kind = R::KIND,
            namespace = object.namespace(),
            name = object.name_any(),
            error = %chain(error),
            tries,
            delay_ms = delay.as_millis(),
            "a reconcile failed"
        );
        Action::requeue(delay)
    }

    fn forget(&self, meta: &ObjectMeta) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(uid) = &meta.uid {
            failures.remove(uid);
        }
    }
}

/// Doubles with each failure, and spreads over its upper half, so that objects that failed together don't come together.
fn delay(tries: u32, random: u64) -> Duration {
    let doubled = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(tries.saturating_sub(1)));
    let half = doubled.min(LAST_DELAY) / 2;
    half + half.mul_f64((random % 1000) as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_and_are_bounded() {
        assert_eq!(delay(1, 0), Duration::from_millis(250));
        assert!(delay(1, 999) < FIRST_DELAY);
        assert!(delay(2, 0) >= FIRST_DELAY);
        assert!(delay(40, 999) <= LAST_DELAY);
    }
}
