//! How many runs may wait: of all namespaces, of one, of one agent.

use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::ComponentRef;

use crate::db::{Db, DbError, Val, vals};
use crate::ops::allowances::Allowances;

const WAITING: &str = "select count(*) from (select 1 from runs where finished_at_ms is null and status = 'PENDING' \
     limit ?1) as waiting";
const WAITING_OF_NAMESPACE: &str = "select count(*) from (select 1 from runs where finished_at_ms is null \
     and status = 'PENDING' and namespace = ?2 limit ?1) as waiting";
const WAITING_OF_AGENT: &str = "select count(*) from (select 1 from runs where finished_at_ms is null \
     and status = 'PENDING' and namespace = ?2 and name = ?3 and kind = ?4 limit ?1) as waiting";

/// The scope of all namespaces: no namespace is called so.
const ALL: &str = "";

/// Which limit keeps a run from waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// That of all namespaces, or the agent's own.
    Queue,
    /// The namespace's.
    Namespace,
}

/// A run that would wait.
pub struct Wish<'a> {
    /// Its agent.
    pub agent: &'a AgentSnapshot,
    /// Most that wait of all namespaces; 0 means no limit.
    pub max_depth: u32,
    /// Most that wait of its namespace; 0 means no limit.
    pub of_namespace: u32,
    /// Now, Unix milliseconds.
    pub at_ms: u64,
}

/// The limit that keeps another run from waiting, if there is one.
pub fn full(db: &mut dyn Db, depths: &Allowances, wish: &Wish<'_>) -> Result<Option<Full>, DbError> {
    let ComponentRef { kind, namespace, name } = &wish.agent.component;
    let most = wish.of_namespace;
    let in_namespace = |db: &mut dyn Db| count(db, WAITING_OF_NAMESPACE, vals![most, namespace]);
    if most > 0 && !depths.admit(namespace, 1, most.into(), wish.at_ms, || in_namespace(db))? {
        return Ok(Some(Full::Namespace));
    }
    let most = wish.max_depth;
    if most > 0 && !depths.admit(ALL, 1, most.into(), wish.at_ms, || count(db, WAITING, vals![most]))? {
        return Ok(Some(Full::Queue));
    }
    match wish.agent.max_queue_depth {
        None | Some(0) => Ok(None),
        Some(most) => {
            let waiting = count(db, WAITING_OF_AGENT, vals![most, namespace, name, kind.as_str()])?;
            Ok((waiting >= u64::from(most)).then_some(Full::Queue))
        }
    }
}

fn count(db: &mut dyn Db, sql: &str, values: &[Val<'_>]) -> Result<u64, DbError> {
    db.first(sql, values)?.map_or(Ok(0), |mut row| row.u64())
}
