//! `POST /metrics/refresh` and `GET /metrics/refresh/status`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use cadre_store::rows::upkeep::UsageFilter;
use http::StatusCode;

use crate::auth::actor::Actor;
use crate::render::usage::{self, DayMetrics, RefreshResponse, RefreshStatus};
use crate::routes::error::ApiError;
use crate::routes::extract::ApiQuery;
use crate::routes::responses::Errors;
use crate::routes::sessions::find;
use crate::routes::state::UserState;

/// Count what is not counted yet.
///
/// Days are counted every minute without it, and `GET /metrics` adds what came since: it is there for clients that ask for
/// it. With `background=true` it goes on after the answer; where one is under way, nothing is started.
#[utoipa::path(
    post, path = "/metrics/refresh", tag = "Metrics", operation_id = "refresh_metrics",
    params(
        ("background" = Option<bool>, Query, description = "Answer at once"),
        ("user_id" = Option<String>, Query, description = "Answer with what this user did"),
        ("db_id" = Option<String>, Query, description = "The database, as `GET /config` names it"),
    ),
    responses(
        (status = 200, description = "The days, oldest first", body = Vec<DayMetrics>),
        (status = 202, description = "`started`, or `already_running`", body = RefreshResponse),
        Errors,
    ),
)]
pub async fn refresh(
    State(state): State<UserState>,
    actor: Actor,
    ApiQuery(mut query): ApiQuery,
) -> Result<Response, ApiError> {
    let background = query.boolean("background", false);
    let user_id = query.text("user_id").map(str::to_owned);
    let db_id = query.text("db_id").map(str::to_owned);
    query.finish()?;
    find::check_database(db_id.as_deref())?;
    let began = state.service.begin_refresh().await?;
    if background {
        if began {
            state.service.refresh_usage_later();
        }
        return Ok((StatusCode::ACCEPTED, Json(begun(began))).into_response());
    }
    if began {
        state.service.refresh_usage().await?;
    }
    let filter = UsageFilter { principal: actor.scope().cloned(), user_id: user_id.clone(), ..UsageFilter::default() };
    let days = state.service.usage(filter).await?;
    let days: Vec<DayMetrics> = days.into_iter().map(|day| usage::day(day, user_id.as_deref())).collect();
    Ok(Json(days).into_response())
}

fn begun(began: bool) -> RefreshResponse {
    let (status, message) = match began {
        true => ("started", "Metrics refresh started in background"),
        false => ("already_running", "A metrics refresh is already in progress for this database"),
    };
    RefreshResponse { status: status.to_owned(), message: Some(message.to_owned()) }
}

/// How the last refresh that somebody asked for went, on whichever server.
#[utoipa::path(
    get, path = "/metrics/refresh/status", tag = "Metrics", operation_id = "get_metrics_refresh_status",
    params(("db_id" = Option<String>, Query, description = "The database, as `GET /config` names it")),
    responses((status = 200, description = "Its state", body = RefreshStatus), Errors),
)]
pub async fn status(
    State(state): State<UserState>,
    _actor: Actor,
    ApiQuery(query): ApiQuery,
) -> Result<Json<RefreshStatus>, ApiError> {
    find::check_database(query.text("db_id"))?;
    Ok(Json(usage::status(state.service.refresh_state().await?)))
}
