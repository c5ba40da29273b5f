//! `GET /sessions`.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use cadre_store::rows::SessionRow;

use crate::auth::actor::Actor;
use crate::domain::{DomainError, Service};
use crate::render::page::{Page, PageMeta};
use crate::render::session::{SessionSchema, schema};
use crate::routes::error::ApiError;
use crate::routes::extract::ApiQuery;
use crate::routes::fields::Fields;
use crate::routes::responses::Errors;
use crate::routes::state::UserState;

/// Most rows of a page.
const MAX_LIMIT: u64 = 1000;
/// Most sessions that a filter or an order of its own looks at, newest first.
const MAX_SCANNED: u64 = 10_000;

/// Sessions, newest first.
///
/// Filters and other orders look at the newest 10,000 sessions.
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
    let wanted = Wanted::read(&mut query, &state.service);
    query.finish()?;
    let offset = (page - 1).saturating_mul(limit);
    let (rows, total) = if wanted.is_everything() {
        state.service.sessions(actor.scope(), offset, limit).await?
    } else {
        let found = wanted.pick(newest(&state.service, &actor).await?);
        let total = u64::try_from(found.len()).unwrap_or(u64::MAX);
        (slice(found, offset, limit), total)
    };
    let namespace = state.service.default_namespace();
    let data = rows.into_iter().map(|row| schema(row, namespace)).collect();
    Ok(Json(Page { data, meta: PageMeta::new(page, limit, total, begun.elapsed()) }))
}

async fn newest(service: &Service, actor: &Actor) -> Result<Vec<SessionRow>, DomainError> {
    let mut rows = Vec::new();
    let mut offset = 0;
    while offset < MAX_SCANNED {
        let (page, total) = service.sessions(actor.scope(), offset, MAX_LIMIT).await?;
        rows.extend(page);
        offset += MAX_LIMIT;
        if offset >= total {
            break;
        }
    }
    Ok(rows)
}

fn slice(rows: Vec<SessionRow>, offset: u64, limit: u64) -> Vec<SessionRow> {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    rows.into_iter().skip(offset).take(limit).collect()
}

/// Filters and order.
#[derive(Debug)]
struct Wanted {
    kind: Option<&'static str>,
    component: Option<cadre_protocol::ids::ComponentRef>,
    user_id: Option<String>,
    name: Option<String>,
    sort_by: Option<&'static str>,
    ascending: bool,
}

impl Wanted {
    fn read(query: &mut Fields, service: &Service) -> Self {
        Self {
            kind: query.one_of("type", &["agent", "team", "workflow"]),
            component: query.text("component_id").map(|id| service.component(id)),
            user_id: query.text("user_id").map(str::to_owned),
            name: query.text("session_name").map(str::to_lowercase),
            sort_by: query.one_of("sort_by", &["created_at", "updated_at", "session_name"]),
            ascending: query.one_of("sort_order", &["asc", "desc"]) == Some("asc"),
        }
    }

    /// Whether the record's own order and contents are what is wanted.
    fn is_everything(&self) -> bool {
        let Self { kind, component, user_id, name, sort_by, ascending } = self;
        matches!(kind, None | Some("agent"))
            && component.is_none()
            && user_id.is_none()
            && name.is_none()
            && matches!(sort_by, None | Some("created_at"))
            && !ascending
    }

    fn pick(&self, mut rows: Vec<SessionRow>) -> Vec<SessionRow> {
        rows.retain(|row| self.matches(row));
        match self.sort_by {
            Some("updated_at") => rows.sort_by_key(|row| std::cmp::Reverse(row.updated_at_ms)),
            Some("session_name") => rows.sort_by(|a, b| b.name.cmp(&a.name)),
            _ => {}
        }
        if self.ascending {
            rows.reverse();
        }
        rows
    }

    fn matches(&self, row: &SessionRow) -> bool {
        self.kind.is_none_or(|kind| row.component.kind.as_str() == kind)
            && self.component.as_ref().is_none_or(|component| row.component == *component)
            && self.user_id.as_ref().is_none_or(|user| row.user_id.as_ref() == Some(user))
            && self.name.as_ref().is_none_or(|name| row.name.to_lowercase().contains(name))
    }
}
