//! Slots: how many sessions of an agent, of a namespace, and of all run at once over all replicas.
//!
//! A run that no limit speaks of needs none, and costs nothing here. Any other waits until it has one, and has it until it
//! ends or pauses. Who gives slots holds a lock, so that replicas together give no more than there are. A slot goes to the
//! namespace that has the fewest, and within it to the run that has waited longest: however much one namespace asks for,
//! another's next run is not behind it.

use std::collections::HashMap;

use cadre_protocol::ids::{ComponentRef, RunId};

use crate::db::{Db, DbError, Row, vals};
use crate::ops::columns;
use crate::ops::slot_lines::{self, Lines, Scope};
use crate::rows::{NewRun, Waiting};
use crate::shares::SlotLimits;

/// The run waits for a slot.
pub const WAITING: u64 = 0;
/// The run has a slot.
pub const TAKEN: u64 = 1;

macro_rules! counts {
    () => {
        "select kind, namespace, name, count(*) from runs where slot = 1 and finished_at_ms is null \
         and status <> 'PAUSED'"
    };
}
const COUNTS: &str = concat!(counts!(), " group by kind, namespace, name");
const COUNTS_IN: &str = concat!(counts!(), " and namespace = ?1 group by kind, namespace, name");
const COUNT_OF: &str =
    concat!(counts!(), " and namespace = ?1 and name = ?2 and kind = ?3 group by kind, namespace, name");
const NEEDED: &str = "select 1 from runs where run_id = ?1 and slot = 0 and finished_at_ms is null";
const TAKE: &str = "update runs set slot = 1 where run_id = ?1 and slot = 0";

/// Whether a run needs a slot.
#[must_use]
pub fn is_limited(run: &NewRun) -> bool {
    run.max_running > 0 || run.shares.max_running > 0 || run.agent.max_concurrent_sessions.is_some()
}

/// Whether a run waits for a slot.
pub fn is_needed(db: &mut dyn Db, run_id: &RunId) -> Result<bool, DbError> {
    Ok(db.first(NEEDED, vals![run_id.as_str()])?.is_some())
}

/// What is taken and what may be.
pub struct Slots {
    taken: HashMap<ComponentRef, u64>,
    limits: SlotLimits,
}

impl Slots {
    /// What is taken in a scope.
    fn count(db: &mut dyn Db, scope: &Scope<'_>, limits: SlotLimits) -> Result<Self, DbError> {
        let rows = match scope {
            Scope::All => db.query(COUNTS, vals![])?,
            Scope::Namespace(namespace) => db.query(COUNTS_IN, vals![*namespace])?,
            Scope::Component(ComponentRef { kind, namespace, name }) => {
                db.query(COUNT_OF, vals![namespace, name, kind.as_str()])?
            }
        };
        let read = |mut row: Row| Ok((columns::component(&mut row)?, row.u64()?));
        Ok(Self { taken: rows.into_iter().map(read).collect::<Result<_, DbError>>()?, limits })
    }

    /// How many more may run in a namespace, at most `most`.
    pub fn room_in(&self, namespace: &str, most: u64) -> u64 {
        let SlotLimits { of_all, of_namespace } = self.limits;
        let left = |limit: u32, taken: u64| if limit == 0 { most } else { u64::from(limit).saturating_sub(taken) };
        most.min(left(of_all, self.taken.values().sum())).min(left(of_namespace, self.taken_in(namespace)))
    }

    /// How many run in a namespace.
    pub fn taken_in(&self, namespace: &str) -> u64 {
        self.taken.iter().filter(|(component, _)| component.namespace == namespace).map(|(_, count)| count).sum()
    }

    /// Whether the component has room, given its own limit.
    pub fn has_room(&self, component: &ComponentRef, max_sessions: Option<u64>) -> bool {
        let taken = self.taken.get(component).copied().unwrap_or_default();
        max_sessions.is_none_or(|most| taken < most) && self.room_in(&component.namespace, 1) > 0
    }

    fn take(&mut self, component: &ComponentRef) {
        *self.taken.entry(component.clone()).or_default() += 1;
    }
}

/// Whether a new run may have a slot at once: there is one, and nobody waits who would get it first.
pub fn is_free(db: &mut dyn Db, run: &NewRun) -> Result<bool, DbError> {
    let limits = SlotLimits { of_all: run.max_running, of_namespace: run.shares.max_running };
    let scope = Scope::of(Some(&run.component), limits);
    let slots = Slots::count(db, &scope, limits)?;
    if !slots.has_room(&run.component, run.agent.max_concurrent_sessions.map(u64::from)) {
        return Ok(false);
    }
    if !matches!(scope, Scope::All) {
        return Ok(slot_lines::first(db, &scope)?.is_none());
    }
    let (own, taken) = (run.component.namespace.as_str(), slots.taken_in(&run.component.namespace));
    let goes_first = |other: &String| other == own || (slots.room_in(other, 1) > 0 && slots.taken_in(other) <= taken);
    Ok(!slot_lines::namespaces(db)?.iter().any(goes_first))
}

/// Gives free slots to heads of lines that wait for one. `component` is whose slot may have become free.
pub fn grant(db: &mut dyn Db, component: Option<&ComponentRef>, limits: SlotLimits) -> Result<Vec<Waiting>, DbError> {
    let scope = Scope::of(component, limits);
    let mut slots = Slots::count(db, &scope, limits)?;
    let mut lines = Lines::read(db, &scope, &slots)?;
    let mut granted = Vec::new();
    while let Some(waiting) = lines.next(&slots) {
        // It may just have ended: its row is locked by the update, which then changes nothing that counts.
        if db.execute(TAKE, vals![waiting.run_id.as_str()])? > 0 {
            slots.take(&waiting.component);
            granted.push(waiting);
        }
    }
    Ok(granted)
}
