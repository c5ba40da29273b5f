//! Agents' snapshots: immutable, so each is read from the database once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::Revision;

use crate::db::{Db, DbError, vals};

/// Most snapshots kept in memory.
const MAX_CACHED: usize = 512;

const SELECT: &str = "select snapshot from revisions where revision = ?1";
const INSERT: &str = "insert into revisions (revision, kind, namespace, name, snapshot, created_at_ms) \
     values (?1, ?2, ?3, ?4, ?5, ?6) on conflict (revision) do nothing";

/// Snapshots that are known to be stored.
#[derive(Debug, Default)]
pub struct Snapshots(Mutex<HashMap<Revision, Arc<AgentSnapshot>>>);

impl Snapshots {
    /// A snapshot that is stored, if this process has seen it.
    pub fn cached(&self, revision: &Revision) -> Option<Arc<AgentSnapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(revision).cloned()
    }

    /// Remembers a snapshot whose row is committed.
    pub fn remember(&self, revision: &Revision, agent: &Arc<AgentSnapshot>) {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.contains_key(revision) {
            return;
        }
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(revision.clone(), Arc::clone(agent));
    }

    /// The snapshot of a stored revision.
    pub fn load(&self, db: &mut dyn Db, revision: &Revision) -> Result<Arc<AgentSnapshot>, DbError> {
        if let Some(agent) = self.cached(revision) {
            return Ok(agent);
        }
        let mut row = db
            .first(SELECT, vals![revision.as_str()])?
            .ok_or_else(|| DbError::Corrupt(format!("revision {revision} is missing")))?;
        // Not remembered: the row may belong to a transaction that is not committed yet.
        Ok(Arc::new(row.json()?))
    }
}

/// Stores a snapshot that was serialized before.
pub fn insert(
    db: &mut dyn Db,
    revision: &Revision,
    agent: &AgentSnapshot,
    json: &str,
    at_ms: u64,
) -> Result<(), DbError> {
    let component = &agent.component;
    let values = vals![revision.as_str(), component.kind.as_str(), &component.namespace, &component.name, json, at_ms];
    db.write(INSERT, values)
}
