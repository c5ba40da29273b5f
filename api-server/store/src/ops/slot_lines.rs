//! Who waits for slots: a line for each component, so that a long one hides no other.

use std::cmp::Reverse;

use cadre_protocol::ids::ComponentRef;

use crate::db::{Db, DbError, Row, vals};
use crate::ops::slots::Slots;
use crate::ops::{columns, queries};
use crate::rows::Waiting;
use crate::shares::SlotLimits;

/// Components with waiting runs, one after the other through the index.
macro_rules! components {
    () => {
        "select kind, namespace, name from runs where slot = 0 and finished_at_ms is null \
         and (namespace, name, kind) > (?1, ?2, ?3)"
    };
}
const NEXT: &str = concat!(components!(), " order by namespace, name, kind limit 1");
const NEXT_IN: &str = concat!(components!(), " and namespace = ?1 order by namespace, name, kind limit 1");
const NEXT_NAMESPACE: &str = "select namespace from runs where slot = 0 and finished_at_ms is null and namespace > ?1 \
     order by namespace limit 1";
const OF: &str = "select kind, namespace, name from runs where slot = 0 and finished_at_ms is null and namespace = ?1 \
     and name = ?2 and kind = ?3 limit 1";
/// Heads of sessions' lines, oldest first.
const HEADS: &str = "select r.run_id, r.session_id, r.kind, r.namespace, r.name, r.status, r.created_at_ms, \
     r.max_sessions from runs r where r.slot = 0 and r.finished_at_ms is null and r.status = 'PENDING' \
     and r.namespace = ?1 and r.name = ?2 and r.kind = ?3 and not exists (select 1 from runs b \
     where b.session_id = r.session_id and b.finished_at_ms is null and b.seq < r.seq) \
     order by r.created_at_ms, r.run_id limit ?4";

/// Most slots that are given in one go; the next sweep gives more.
const MAX_GRANTED: u64 = 1_000;

/// Whose slots are one lot.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    /// A slot that becomes free is anyone's.
    All,
    /// It stays in the namespace.
    Namespace(&'a str),
    /// It stays with the component.
    Component(&'a ComponentRef),
}

impl<'a> Scope<'a> {
    /// Who may get a slot of the component, or of any.
    pub fn of(component: Option<&'a ComponentRef>, limits: SlotLimits) -> Self {
        match component {
            None => Self::All,
            Some(_) if limits.of_all > 0 => Self::All,
            Some(component) if limits.of_namespace > 0 => Self::Namespace(&component.namespace),
            Some(component) => Self::Component(component),
        }
    }
}

/// A run that could start if it had a slot.
struct Head {
    waiting: Waiting,
    max_sessions: Option<u64>,
}

/// Lines of components.
pub struct Lines(Vec<Vec<Head>>);

impl Lines {
    /// As much of the lines of a scope as slots can be given to.
    pub fn read(db: &mut dyn Db, scope: &Scope<'_>, slots: &Slots) -> Result<Self, DbError> {
        let mut lines = Vec::new();
        let mut next = first(db, scope)?;
        while let Some(component) = next {
            let room = slots.room_in(&component.namespace, MAX_GRANTED);
            if room > 0 {
                lines.push(heads(db, &component, room)?);
            }
            next = after(db, scope, &component)?;
        }
        Ok(Self(lines))
    }

    /// Takes out the run that gets the next slot.
    pub fn next(&mut self, slots: &Slots) -> Option<Waiting> {
        let fits = |head: &Head| slots.has_room(&head.waiting.component, head.max_sessions);
        let firsts = self.0.iter().enumerate().filter_map(|(line, heads)| {
            // Later ones may have a larger limit: the agent may have changed meanwhile.
            let place = heads.iter().rposition(fits)?;
            let Waiting { component, created_at_ms, run_id, .. } = &heads.get(place)?.waiting;
            Some((slots.taken_in(&component.namespace), *created_at_ms, run_id, line, place))
        });
        let (_, _, _, line, place) = firsts.min()?;
        Some(self.0.get_mut(line)?.remove(place).waiting)
    }
}

/// The longest waiting one is the last.
fn heads(db: &mut dyn Db, component: &ComponentRef, most: u64) -> Result<Vec<Head>, DbError> {
    let ComponentRef { kind, namespace, name } = component;
    let rows = db.query(HEADS, vals![namespace, name, kind.as_str(), most])?;
    let read = |mut row: Row| Ok(Head { waiting: queries::waiting_row(&mut row)?, max_sessions: row.opt_u64()? });
    let mut heads = rows.into_iter().map(read).collect::<Result<Vec<_>, DbError>>()?;
    heads.sort_by_key(|head| Reverse((head.waiting.created_at_ms, head.waiting.run_id.clone())));
    Ok(heads)
}

/// A component of the scope whose runs wait for slots.
pub fn first(db: &mut dyn Db, scope: &Scope<'_>) -> Result<Option<ComponentRef>, DbError> {
    let row = match scope {
        Scope::All => db.first(NEXT, vals!["", "", ""])?,
        Scope::Namespace(namespace) => db.first(NEXT_IN, vals![*namespace, "", ""])?,
        Scope::Component(ComponentRef { kind, namespace, name }) => {
            db.first(OF, vals![namespace, name, kind.as_str()])?
        }
    };
    row.map(|mut row| columns::component(&mut row)).transpose()
}

fn after(db: &mut dyn Db, scope: &Scope<'_>, last: &ComponentRef) -> Result<Option<ComponentRef>, DbError> {
    let ComponentRef { kind, namespace, name } = last;
    let sql = match scope {
        Scope::All => NEXT,
        Scope::Namespace(_) => NEXT_IN,
        Scope::Component(_) => return Ok(None),
    };
    db.first(sql, vals![namespace, name, kind.as_str()])?.map(|mut row| columns::component(&mut row)).transpose()
}

/// Namespaces whose runs wait for slots.
pub fn namespaces(db: &mut dyn Db) -> Result<Vec<String>, DbError> {
    let mut found: Vec<String> = Vec::new();
    loop {
        let last = found.last().map_or("", String::as_str);
        let Some(mut row) = db.first(NEXT_NAMESPACE, vals![last])? else { return Ok(found) };
        found.push(row.text()?);
    }
}
