//! Idempotency keys: whose they are, and the runs that they name.

use cadre_protocol::ids::{ComponentRef, RunId, SessionId};

use crate::db::{Db, DbError, vals};
use crate::ops::columns::{self, run_columns};
use crate::rows::{IdempotencyKey, NewRun, Origin, Principal, RunRow};

const KEY: &str = "select kind, namespace, name, body_sha256, run_id from idempotency_keys \
     where principal = ?1 and user_id = ?2 and origin = ?3 and idem_key = ?4";
const INSERT: &str = "insert into idempotency_keys \
     (principal, user_id, origin, idem_key, kind, namespace, name, body_sha256, run_id, session_id, created_at_ms) \
     values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
const RUN: &str = concat!("select ", run_columns!(), " from runs r where r.run_id = ?1");

/// Whose keys are meant.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// Owner.
    pub principal: &'a Principal,
    /// The user that the caller names.
    pub user_id: Option<&'a str>,
    /// HTTP callers or Run objects: their keys never meet.
    pub origin: &'a Origin,
    /// Component; not a part of the scope: the same key for another one is a conflict.
    pub component: &'a ComponentRef,
}

/// What a key names.
pub enum Found {
    /// A run of the same request.
    Run(Box<RunRow>),
    /// Another request.
    Conflict,
}

impl<'a> Scope<'a> {
    /// Of a run.
    pub fn of(run: &'a NewRun) -> Self {
        let NewRun { principal, user_id, origin, component, .. } = run;
        Self { principal, user_id: user_id.as_deref(), origin, component }
    }

    fn origin_text(&self) -> String {
        match self.origin {
            Origin::Http => "http".into(),
            Origin::RunObject { .. } => format!("run-object:{}", self.component.namespace),
        }
    }
}

/// Looks a key up.
pub fn find(db: &mut dyn Db, scope: Scope<'_>, key: &IdempotencyKey) -> Result<Option<Found>, DbError> {
    let (origin, user_id) = (scope.origin_text(), scope.user_id.unwrap_or_default());
    let Some(mut row) = db.first(KEY, vals![&scope.principal.0, user_id, &origin, &key.key])? else { return Ok(None) };
    let same_component = columns::component(&mut row)? == *scope.component;
    if !same_component || row.text()? != key.body_sha256 {
        return Ok(Some(Found::Conflict));
    }
    let run_id = row.text()?;
    let mut row = db
        .first(RUN, vals![&run_id])?
        .ok_or_else(|| DbError::Corrupt(format!("run {run_id} of an idempotency key is missing")))?;
    Ok(Some(Found::Run(Box::new(columns::run(&mut row)?))))
}

/// Lets a key name a run.
pub fn insert(
    db: &mut dyn Db,
    scope: Scope<'_>,
    key: &IdempotencyKey,
    (run_id, session_id): (&RunId, &SessionId),
    at_ms: u64,
) -> Result<(), DbError> {
    let (origin, user_id) = (scope.origin_text(), scope.user_id.unwrap_or_default());
    let ComponentRef { kind, namespace, name } = scope.component;
    let values = vals![
        &scope.principal.0,
        user_id,
        &origin,
        &key.key,
        kind.as_str(),
        namespace,
        name,
        &key.body_sha256,
        run_id.as_str(),
        session_id.as_str(),
        at_ms
    ];
    db.write(INSERT, values)
}
