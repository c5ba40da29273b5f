//! Slots: how many sessions of an agent, and of all, run at once over all replicas.
//!
//! A run of an agent without a limit needs none, and costs nothing here. Any other waits until it has one, and has it
//! until it ends or pauses. Who gives slots holds a lock, so that replicas together give no more than there are.

use std::collections::HashMap;

use cadre_protocol::ids::ComponentRef;

use crate::db::{Db, DbError, Row, vals};
use crate::ops::{columns, queries};
use crate::rows::{NewRun, Waiting};

/// The run waits for a slot.
pub const WAITING: u64 = 0;
/// The run has a slot.
pub const TAKEN: u64 = 1;

const COUNT_OF: &str = "select count(*) from runs where slot = 1 and namespace = ?1 and name = ?2 and kind = ?3 \
     and finished_at_ms is null and status <> 'PAUSED'";
const COUNTS: &str = "select kind, namespace, name, count(*) from runs where slot = 1 and finished_at_ms is null \
     and status <> 'PAUSED' group by kind, namespace, name";
const WAITS_OF: &str = "select 1 from runs where slot = 0 and namespace = ?1 and name = ?2 and kind = ?3 \
     and finished_at_ms is null limit 1";
const WAITS: &str = "select 1 from runs where slot = 0 and finished_at_ms is null limit 1";
const TAKE: &str = "update runs set slot = 1 where run_id = ?1 and slot = 0";

/// Heads of lines that wait for a slot.
macro_rules! heads {
    () => {
        "select r.run_id, r.session_id, r.kind, r.namespace, r.name, r.status, r.created_at_ms, r.max_sessions \
         from runs r where r.slot = 0 and r.finished_at_ms is null and r.status = 'PENDING' \
         and not exists (select 1 from runs b where b.session_id = r.session_id and b.finished_at_ms is null \
         and b.seq < r.seq)"
    };
}
const HEADS: &str = concat!(heads!(), " order by r.created_at_ms, r.run_id limit 1000");
const HEADS_OF: &str = concat!(
    heads!(),
    " and r.namespace = ?1 and r.name = ?2 and r.kind = ?3 order by r.created_at_ms, r.run_id limit 100"
);

/// Whether a run needs a slot.
#[must_use]
pub fn is_limited(run: &NewRun) -> bool {
    run.max_running > 0 || run.agent.max_concurrent_sessions.is_some()
}

/// What is there and what may be.
struct Slots {
    taken: HashMap<ComponentRef, u64>,
    max_running: u32,
}

impl Slots {
    fn all(db: &mut dyn Db, max_running: u32) -> Result<Self, DbError> {
        let read = |mut row: Row| Ok((columns::component(&mut row)?, row.u64()?));
        let taken = db.query(COUNTS, vals![])?.into_iter().map(read).collect::<Result<_, DbError>>()?;
        Ok(Self { taken, max_running })
    }

    fn of(db: &mut dyn Db, component: &ComponentRef) -> Result<Self, DbError> {
        let ComponentRef { kind, namespace, name } = component;
        let count = db.first(COUNT_OF, vals![namespace, name, kind.as_str()])?.map_or(Ok(0), |mut row| row.u64())?;
        Ok(Self { taken: HashMap::from([(component.clone(), count)]), max_running: 0 })
    }

    fn is_full(&self) -> bool {
        self.max_running > 0 && self.taken.values().sum::<u64>() >= u64::from(self.max_running)
    }

    /// Whether the component has room, given its own limit.
    fn has_room(&self, component: &ComponentRef, max_sessions: Option<u64>) -> bool {
        let taken = self.taken.get(component).copied().unwrap_or_default();
        !self.is_full() && max_sessions.is_none_or(|most| taken < most)
    }

    fn take(&mut self, component: &ComponentRef) {
        *self.taken.entry(component.clone()).or_default() += 1;
    }
}

/// Whether a new run may have a slot at once: there is one, and nobody waits for one.
pub fn is_free(db: &mut dyn Db, run: &NewRun) -> Result<bool, DbError> {
    let ComponentRef { kind, namespace, name } = &run.component;
    let (slots, waits) = if run.max_running > 0 {
        (Slots::all(db, run.max_running)?, db.first(WAITS, vals![])?)
    } else {
        (Slots::of(db, &run.component)?, db.first(WAITS_OF, vals![namespace, name, kind.as_str()])?)
    };
    Ok(waits.is_none() && slots.has_room(&run.component, run.agent.max_concurrent_sessions.map(u64::from)))
}

/// Gives free slots to the oldest that wait for one.
pub fn grant(db: &mut dyn Db, component: Option<&ComponentRef>, max_running: u32) -> Result<Vec<Waiting>, DbError> {
    // A slot of all agents that becomes free is anyone's.
    let component = component.filter(|_| max_running == 0);
    let (mut slots, heads) = match component {
        Some(component) => {
            let ComponentRef { kind, namespace, name } = component;
            (Slots::of(db, component)?, db.query(HEADS_OF, vals![namespace, name, kind.as_str()])?)
        }
        None => (Slots::all(db, max_running)?, db.query(HEADS, vals![])?),
    };
    let mut granted = Vec::new();
    for mut row in heads {
        let (waiting, max_sessions) = (queries::waiting_row(&mut row)?, row.opt_u64()?);
        if slots.is_full() {
            break;
        }
        // It may just have ended: its row is locked by the update, which then changes nothing that counts.
        if slots.has_room(&waiting.component, max_sessions) && db.execute(TAKE, vals![waiting.run_id.as_str()])? > 0 {
            slots.take(&waiting.component);
            granted.push(waiting);
        }
    }
    Ok(granted)
}
