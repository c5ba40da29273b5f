//! The session that a path and its query mean.

use cadre_protocol::ids::SessionId;
use cadre_store::rows::SessionRow;
use utoipa::IntoParams;

use crate::auth::actor::Actor;
use crate::domain::Service;
use crate::render::agent::DB_ID;
use crate::routes::error::ApiError;
use crate::routes::fields::Fields;

/// The kinds of sessions that clients know.
const KINDS: [&str; 3] = ["agent", "team", "workflow"];

/// The query, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by the OpenAPI document only")]
pub struct NarrowQuery {
    /// `agent`, `team` or `workflow`; 404 if the session is of another type.
    #[param(rename = "type")]
    kind: Option<String>,
    /// 404 if the session is another user's.
    user_id: Option<String>,
    /// The database, as `GET /config` names it.
    db_id: Option<String>,
}

/// What narrows a session down, as AgentOS's clients send it.
#[derive(Debug)]
pub struct Narrow {
    kind: Option<&'static str>,
    user_id: Option<String>,
    db_id: Option<String>,
}

impl Narrow {
    /// Reads `type`, `user_id` and `db_id`.
    #[must_use]
    pub fn read(query: &mut Fields) -> Self {
        Self {
            kind: query.one_of("type", &KINDS),
            user_id: query.text("user_id").map(str::to_owned),
            db_id: query.text("db_id").map(str::to_owned),
        }
    }

    /// The session, if it is the actor's and what the query says of it is so.
    ///
    /// # Errors
    /// 404, or what the record says.
    pub async fn find(&self, service: &Service, actor: &Actor, session_id: &str) -> Result<SessionRow, ApiError> {
        check_database(self.db_id.as_deref())?;
        let absent = || ApiError::session_not_found(session_id);
        let id = SessionId::new(session_id).map_err(|_| absent())?;
        let session = service.session(&id, actor.scope()).await?;
        // All sessions are of agents.
        let is_kind = matches!(self.kind, None | Some("agent"));
        let is_users = self.user_id.is_none() || self.user_id == session.user_id;
        if is_kind && is_users { Ok(session) } else { Err(absent()) }
    }
}

/// There is one database.
///
/// # Errors
/// 404 for another one.
pub fn check_database(db_id: Option<&str>) -> Result<(), ApiError> {
    match db_id {
        None | Some(DB_ID) => Ok(()),
        Some(other) => Err(ApiError::not_found(format!("No database found with id '{other}'"))),
    }
}
