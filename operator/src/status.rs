//! The one way in which status is written: only when it differs, not too often, and by one field manager.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::error::{Error, kubernetes};

/// Field manager of status.
pub const MANAGER: &str = "cadre-operator-status";
/// Least time between two writes of numbers to one object.
const PER_OBJECT: Duration = Duration::from_secs(10);
/// Least time between two writes of numbers to any object: five a second.
const OVERALL: Duration = Duration::from_millis(200);

/// Objects that may be remembered before old ones are dropped.
const REMEMBERED: usize = 4096;
const OLD: Duration = Duration::from_secs(600);

/// How soon a change must be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// At once: a condition or a phase.
    Now,
    /// Within the pace for busy objects: a number.
    Paced,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Nothing had changed.
    Unchanged,
    /// It was written.
    Yes,
    /// It must wait so long.
    Later(Duration),
}

/// Writes status, and remembers what it wrote until the caches have it.
#[derive(Debug, Default)]
pub struct StatusWriter {
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    objects: HashMap<String, Last>,
    next_paced: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Last {
    /// `resourceVersion` of the cached object when the write was made.
    from: Option<String>,
    status: Value,
    at: Instant,
}

impl StatusWriter {
    /// The newest known status: the cached one, or the one written since the cache was filled. Where nothing is cached,
    /// what was written last.
    pub fn latest<S: DeserializeOwned + Clone + Default>(&self, meta: &ObjectMeta, cached: Option<&S>) -> S {
        self.fresher(meta, cached.is_none())
            .and_then(|status| serde_json::from_value(status).ok())
            .or_else(|| cached.cloned())
            .unwrap_or_default()
    }

    fn fresher(&self, meta: &ObjectMeta, any: bool) -> Option<Value> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let last = memory.objects.get(meta.uid.as_ref()?)?;
        (any || last.from == meta.resource_version).then(|| last.status.clone())
    }

    /// Writes `new` if it differs from `old`, ignoring times of transitions.
    ///
    /// # Errors
    /// When the API refuses. An object that is gone is no error.
    pub async fn write<K: Resource<DynamicType = ()>>(
        &self,
        client: &Client,
        meta: &ObjectMeta,
        old: &impl Serialize,
        new: &impl Serialize,
        urgency: Urgency,
    ) -> Result<Written, Error> {
        let (old, new) = (to_value(old), to_value(new));
        if without_times(&old) == without_times(&new) {
            return Ok(Written::Unchanged);
        }
        if let Some(wait) = self.pace(meta.uid.as_deref().unwrap_or_default(), urgency, Instant::now()) {
            return Ok(Written::Later(wait));
        }
        self.apply::<K>(client, meta, new).await
    }

    async fn apply<K: Resource<DynamicType = ()>>(
        &self,
        client: &Client,
        meta: &ObjectMeta,
        status: Value,
    ) -> Result<Written, Error> {
        let name = meta.name.as_deref().unwrap_or_default();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        // Untyped, because the status of an object that can't be read as its type is written too.
        let kind = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        // The uid keeps a write from reaching a new object of the same name.
        let patch = Patch::Apply(json!({
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": { "name": name, "uid": meta.uid },
            "status": status,
        }));
        match api.patch_status(name, &PatchParams::apply(MANAGER).force(), &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => return Ok(Written::Unchanged),
            Err(error) => return Err(kubernetes("write a status")(error)),
        }
        let last = Last { from: meta.resource_version.clone(), status, at: Instant::now() };
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        prune(&mut memory.objects, last.at);
        memory.objects.insert(meta.uid.clone().unwrap_or_default(), last);
        Ok(Written::Yes)
    }

    /// How long a write must wait; none means go.
    fn pace(&self, uid: &str, urgency: Urgency, now: Instant) -> Option<Duration> {
        if urgency == Urgency::Now {
            return None;
        }
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let object = memory.objects.get(uid).map(|last| last.at + PER_OBJECT);
        let due = object.into_iter().chain(memory.next_paced).max().unwrap_or(now);
        if due > now {
            return Some(due - now);
        }
        memory.next_paced = Some(now + OVERALL);
        None
    }
}

/// Drops what is too old to matter: a cache lags by seconds, and so does the pace.
fn prune(objects: &mut HashMap<String, Last>, now: Instant) {
    if objects.len() > REMEMBERED {
        objects.retain(|_, last| now.duration_since(last.at) < OLD);
    }
}

fn to_value<S: Serialize>(status: &S) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

fn without_times(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            condition.remove("lastTransitionTime");
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_transitions_are_no_difference() {
        let status = |time: &str, reason: &str| json!({"conditions": [{"type": "Ready", "reason": reason, "lastTransitionTime": time}]});
        assert_eq!(without_times(&status("a", "x")), without_times(&status("b", "x")));
        assert_ne!(without_times(&status("a", "x")), without_times(&status("a", "y")));
    }

    #[test]
    fn numbers_are_written_once_in_ten_seconds_and_five_times_a_second() {
        let writer = StatusWriter::default();
        let now = Instant::now();
        let remember = |uid: &str| {
            let last = Last { from: None, status: Value::Null, at: now };
            writer.memory.lock().unwrap().objects.insert(uid.to_owned(), last);
        };
        assert_eq!(writer.pace("a", Urgency::Paced, now), None);
        remember("a");
        assert_eq!(writer.pace("a", Urgency::Paced, now), Some(PER_OBJECT));
        assert_eq!(writer.pace("b", Urgency::Paced, now), Some(OVERALL));
        assert_eq!(writer.pace("b", Urgency::Paced, now + OVERALL), None);
        assert_eq!(writer.pace("a", Urgency::Now, now), None);
        assert_eq!(writer.pace("a", Urgency::Paced, now + PER_OBJECT), None);
    }

    #[test]
    fn a_write_is_remembered_until_the_cache_has_moved() {
        let writer = StatusWriter::default();
        let last = Last { from: Some("7".into()), status: json!("new"), at: Instant::now() };
        writer.memory.lock().unwrap().objects.insert("u".into(), last);
        let meta = |version: &str| ObjectMeta {
            uid: Some("u".into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        assert_eq!(writer.latest(&meta("7"), Some(&"old".to_owned())), "new");
        assert_eq!(writer.latest(&meta("8"), Some(&"cached".to_owned())), "cached");
    }
}
