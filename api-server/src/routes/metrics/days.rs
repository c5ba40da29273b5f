//! `GET /metrics`.

use axum::Json;
use axum::extract::State;
use cadre_store::rows::upkeep::UsageFilter;

use super::date;
use crate::auth::actor::Actor;
use crate::render::usage::{MetricsResponse, response};
use crate::routes::error::ApiError;
use crate::routes::extract::ApiQuery;
use crate::routes::responses::Errors;
use crate::routes::sessions::find;
use crate::routes::state::UserState;

/// Runs, sessions, users, tokens and models by day (UTC), up to this moment.
#[utoipa::path(
    get, path = "/metrics", tag = "Metrics", operation_id = "get_metrics",
    params(
        ("starting_date" = Option<String>, Query, description = "First day, as `YYYY-MM-DD`"),
        ("ending_date" = Option<String>, Query, description = "Last day, as `YYYY-MM-DD`"),
        ("user_id" = Option<String>, Query, description = "Only what this user did"),
        ("db_id" = Option<String>, Query, description = "The database, as `GET /config` names it"),
    ),
    responses((status = 200, description = "The days, oldest first", body = MetricsResponse), Errors),
)]
pub async fn days(
    State(state): State<UserState>,
    actor: Actor,
    ApiQuery(mut query): ApiQuery,
) -> Result<Json<MetricsResponse>, ApiError> {
    let (from_day, to_day) = (date(&mut query, "starting_date"), date(&mut query, "ending_date"));
    let user_id = query.text("user_id").map(str::to_owned);
    let db_id = query.text("db_id").map(str::to_owned);
    query.finish()?;
    find::check_database(db_id.as_deref())?;
    let filter = UsageFilter { from_day, to_day, principal: actor.scope().cloned(), user_id: user_id.clone() };
    Ok(Json(response(state.service.usage(filter).await?, user_id.as_deref())))
}
