//! What was written lately, so that many who want the same thing write it once before the caches have it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

/// Time in which a cache surely has what was written.
const LAG: Duration = Duration::from_secs(5);

/// Objects that were written and that no watch has told of since. What a watch tells is in the cache, and counts alone: so an
/// object that somebody deletes right after it was written is missed at once.
#[derive(Debug, Default)]
pub struct Written(Mutex<HashMap<String, Instant>>);

impl Written {
    /// An object is about to be written. Said before the request, because the watch may be faster than the answer.
    pub fn begin<K: Resource<DynamicType = ()>>(&self, object: &K) {
        let mut written = self.lock();
        written.retain(|_, at| at.elapsed() < LAG);
        written.insert(key(object), Instant::now());
    }

    /// Whether the cache may lack what was written.
    #[must_use]
    pub fn is_on_its_way<K: Resource<DynamicType = ()>>(&self, object: &K) -> bool {
        self.lock().get(&key(object)).is_some_and(|at| at.elapsed() < LAG)
    }

    /// The watch has told of an object, or its write has failed.
    pub fn seen<K: Resource<DynamicType = ()>>(&self, object: &K) {
        self.lock().remove(&key(object));
    }

    /// A watch has told of everything.
    pub fn all_seen(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> String {
    ObjectRef::from_obj(object).to_string()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ServiceAccount;
    use k8s_openapi::api::networking::v1::NetworkPolicy;

    use super::*;
    use crate::objects::labels;

    #[test]
    fn what_was_written_is_on_its_way_until_the_watch_tells_of_it() {
        let policy = |name| NetworkPolicy { metadata: labels::shared("team", name), spec: None };
        let written = Written::default();
        written.begin(&policy("a"));
        assert!(written.is_on_its_way(&policy("a")) && !written.is_on_its_way(&policy("b")));
        let account = ServiceAccount { metadata: labels::shared("team", "a"), ..ServiceAccount::default() };
        written.seen(&account);
        assert!(written.is_on_its_way(&policy("a")), "another kind has the name");
        written.seen(&policy("a"));
        assert!(!written.is_on_its_way(&policy("a")));
    }
}
