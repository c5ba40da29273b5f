//! Sessions that clients make and change themselves.

use cadre_protocol::ids::{ComponentKind, SessionId};

use crate::db::{Db, DbError, vals};
use crate::ops::sessions;
use crate::rows::sessions::{NewSession, SessionEdit};
use crate::rows::{Principal, SessionRow};

const CREATE: &str = "insert into sessions (session_id, kind, namespace, name, principal, user_id, title, state, \
     metadata, next_seq, created_at_ms, updated_at_ms) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1, ?10, ?10) \
     on conflict (session_id) do nothing";
const EDIT: &str = "update sessions set title = coalesce(?2, title), state = coalesce(?3, state), \
     metadata = coalesce(?4, metadata), summary = coalesce(?5, summary), updated_at_ms = ?6 where session_id = ?1 \
     and principal = coalesce(?7, principal)";

/// Makes a session. None when the id is taken.
pub fn create(db: &mut dyn Db, new: &NewSession) -> Result<Option<SessionRow>, DbError> {
    let NewSession { session_id, component, principal, user_id, name, state, metadata, at_ms } = new;
    let component = component.as_ref();
    let made = db.execute(
        CREATE,
        vals![
            session_id.as_str(),
            component.map_or(ComponentKind::Agent, |component| component.kind).as_str(),
            component.map(|component| &component.namespace),
            component.map(|component| &component.name),
            &principal.0,
            user_id.as_ref(),
            name,
            &serde_json::to_string(state)?,
            &serde_json::to_string(metadata)?,
            *at_ms
        ],
    )?;
    if made == 0 { Ok(None) } else { sessions::session(db, session_id, None) }
}

/// Changes a session; where an owner is named, only if it is theirs. None when there is none.
pub fn edit(
    db: &mut dyn Db,
    session_id: &SessionId,
    of: Option<&Principal>,
    edit: &SessionEdit,
    at_ms: u64,
) -> Result<Option<SessionRow>, DbError> {
    let SessionEdit { name, state, metadata, summary } = edit;
    let text = |object: &Option<serde_json::Map<String, serde_json::Value>>| {
        object.as_ref().map(serde_json::to_string).transpose()
    };
    let (state, metadata, summary) = (text(state)?, text(metadata)?, text(summary)?);
    let owner = of.map(|owner| &owner.0);
    let (state, metadata, summary) = (state.as_ref(), metadata.as_ref(), summary.as_ref());
    db.write(EDIT, vals![session_id.as_str(), name.as_ref(), state, metadata, summary, at_ms, owner])?;
    sessions::session(db, session_id, of)
}
