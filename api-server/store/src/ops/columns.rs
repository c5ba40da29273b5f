//! Columns in the order in which rows are read.

use cadre_protocol::ids::{ComponentKind, ComponentRef};
use cadre_protocol::run::RunStatus;

use crate::db::{DbError, Row};
use crate::rows::{Lineage, Origin, Principal, RunRow, SessionRow};

/// Columns of [`run`], of `runs r`.
macro_rules! run_columns {
    () => {
        "r.run_id, r.session_id, r.kind, r.namespace, r.name, r.principal, r.user_id, r.object_uid, r.object_name, \
         r.status, r.revision, r.attempt, \
         coalesce((select e.next_index from events e where e.run_id = r.run_id order by e.first_index desc limit 1), 0), \
         r.input, r.content, r.content_type, r.failure, r.cancellation_stage, r.cancel_requested, r.metadata, r.metrics, \
         r.timeout_seconds, r.created_at_ms, r.started_at_ms, r.finished_at_ms, r.paused_ms, r.forked_from_run_id, \
         r.forked_from_message_index, r.forked_from_session_id, r.regenerated_from"
    };
}
pub(crate) use run_columns;

/// Columns of [`session`].
macro_rules! session_columns {
    () => {
        "session_id, kind, namespace, name, principal, user_id, title, state, metadata, summary, created_at_ms, \
         updated_at_ms"
    };
}
pub(crate) use session_columns;

/// Reads kind, namespace and name.
pub fn component(row: &mut Row) -> Result<ComponentRef, DbError> {
    opt_component(row)?.ok_or_else(|| DbError::Corrupt("a component has no name".into()))
}

/// The same, where namespace and name may be missing.
pub fn opt_component(row: &mut Row) -> Result<Option<ComponentRef>, DbError> {
    let kind = row.text()?;
    if kind != ComponentKind::Agent.as_str() {
        return Err(DbError::Corrupt(format!("unknown kind of component {kind:?}")));
    }
    let (namespace, name) = (row.opt_text()?, row.opt_text()?);
    Ok(namespace.zip(name).map(|(namespace, name)| ComponentRef { kind: ComponentKind::Agent, namespace, name }))
}

/// Reads a status.
pub fn status(row: &mut Row) -> Result<RunStatus, DbError> {
    let text = row.text()?;
    RunStatus::parse(&text).ok_or_else(|| DbError::Corrupt(format!("unknown status {text:?}")))
}

fn origin(row: &mut Row) -> Result<Origin, DbError> {
    Ok(match (row.opt_text()?, row.opt_text()?) {
        (Some(uid), name) => Origin::RunObject { uid, name: name.unwrap_or_default() },
        (None, _) => Origin::Http,
    })
}

/// Reads [`run_columns`].
pub fn run(row: &mut Row) -> Result<RunRow, DbError> {
    Ok(RunRow {
        run_id: row.id()?,
        session_id: row.id()?,
        component: component(row)?,
        principal: Principal(row.text()?),
        user_id: row.opt_text()?,
        origin: origin(row)?,
        status: status(row)?,
        revision: row.id()?,
        attempt: row.u32()?,
        next_index: row.u64()?,
        input: row.json()?,
        content: row.opt_json()?,
        content_type: row.opt_text()?,
        failure: row.opt_json()?,
        cancellation_stage: row.opt_text()?,
        cancel_requested: row.bool()?,
        metadata: row.json()?,
        metrics: row.opt_json()?.unwrap_or_default(),
        timeout_seconds: row.opt_u64()?.and_then(|n| u32::try_from(n).ok()),
        created_at_ms: row.u64()?,
        started_at_ms: row.opt_u64()?,
        finished_at_ms: row.opt_u64()?,
        paused_ms: row.u64()?,
        lineage: Lineage {
            run_id: row.opt_id()?,
            message_index: row.opt_u64()?,
            session_id: row.opt_id()?,
            regenerated_from: row.opt_id()?,
        },
    })
}

/// Reads [`session_columns`].
pub fn session(row: &mut Row) -> Result<SessionRow, DbError> {
    Ok(SessionRow {
        session_id: row.id()?,
        component: opt_component(row)?,
        principal: Principal(row.text()?),
        user_id: row.opt_text()?,
        name: row.text()?,
        state: row.json()?,
        metadata: row.json()?,
        summary: row.opt_json()?,
        created_at_ms: row.u64()?,
        updated_at_ms: row.u64()?,
    })
}
