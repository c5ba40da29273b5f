//! `GET /sessions`.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use cadre_store::rows::sessions::{SessionFilter, SessionOrder};

use super::find;
use crate::auth::actor::Actor;
use crate::render::page::{Page, PageMeta};
use crate::render::session::{SessionSchema, schema};
use crate::routes::error::ApiError;
use crate::routes::extract::ApiQuery;
use crate::routes::fields::Fields;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// Most rows of a page.
const MAX_LIMIT: u64 = 1000;

/// Sessions, newest first.
#[utoipa::path(
    get, path = "/sessions", tag = "Sessions", operation_id = "list_sessions",
    params(
        ("type" = Option<String>, Query, description = "`agent`, `team` or `workflow`"),
        ("component_id" = Option<String>, Query, description = "Only sessions of this agent"),
        ("user_id" = Option<String>, Query, description = "Only sessions of this user"),
        ("session_name" = Option<String>, Query, description = "Only sessions whose name contains this"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Most rows of a page; 20 if absent, never over 1,000"),
        ("page" = Option<u64>, Query, minimum = 1, description = "From 1"),
        ("sort_by" = Option<String>, Query, description = "`created_at` (if absent), `updated_at` or `session_name`"),
        ("sort_order" = Option<String>, Query, description = "`desc` (if absent) or `asc`"),
        ("db_id" = Option<String>, Query, description = "The database, as `GET /config` names it"),
    ),
    responses((status = 200, description = "A page of them", body = Page<SessionSchema>), Errors),
)]
pub async fn list(
    State(state): State<UserState>,
    actor: Actor,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<Page<SessionSchema>>, ApiError> {
    let begun = Instant::now();
    let page = query.integer_from("page", 1, 1);
    let limit = query.integer_from("limit", 1, 20).min(MAX_LIMIT);
    let kind = query.one_of("type", &["agent", "team", "workflow"]);
    let (order, ascending) = order(&mut query);
    let filter = SessionFilter {
        principal: actor.scope().cloned(),
        component: query.text("component_id").map(|id| state.service.component(id)),
        user_id: query.text("user_id").map(str::to_owned),
        name_part: query.text("session_name").map(str::to_owned),
        order,
        ascending,
        offset: (page - 1).saturating_mul(limit),
        limit,
    };
    let db_id = query.text("db_id").map(str::to_owned);
    query.finish()?;
    find::check_database(db_id.as_deref())?;
    // All sessions are of agents.
    let (rows, total) = match kind {
        None | Some("agent") => state.service.sessions(filter).await?,
        Some(_) => (Vec::new(), 0),
    };
    let namespace = state.service.default_namespace();
    let data = rows.into_iter().map(|row| schema(row, namespace)).collect();
    Ok(Json(Page { data, meta: PageMeta::new(page, limit, total, begun.elapsed()) }))
}

fn order(query: &mut Fields) -> (SessionOrder, bool) {
    let order = match query.one_of("sort_by", &["created_at", "updated_at", "session_name"]) {
        Some("updated_at") => SessionOrder::Updated,
        Some("session_name") => SessionOrder::Name,
        _ => SessionOrder::Created,
    };
    (order, query.one_of("sort_order", &["asc", "desc"]) == Some("asc"))
}
