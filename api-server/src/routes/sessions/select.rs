//! Which runs of a session a list shows.

use cadre_protocol::run::RunStatus;
use cadre_store::rows::sessions::SessionRuns;

use super::find::Narrow;
use crate::auth::actor::Actor;
use crate::domain::Service;
use crate::routes::error::ApiError;
use crate::routes::fields::Fields;

/// The runs of a session that a query asks for. Statuses match any of those given, in any case. None when no run can match.
///
/// # Errors
/// 404 for a session that is not the caller's, 422 for a wrong query, or what the record says.
pub async fn runs(
    service: &Service,
    actor: &Actor,
    session_id: &str,
    mut query: Fields,
) -> Result<Option<SessionRuns>, ApiError> {
    let narrow = Narrow::read(&mut query);
    let after = query.integer("created_after");
    let before = query.integer("created_before");
    let named = |(name, value): &(String, String)| {
        (name == "status" && !value.is_empty()).then(|| RunStatus::parse(&value.to_ascii_uppercase()))
    };
    let statuses: Vec<Option<RunStatus>> = query.pairs().iter().filter_map(named).collect();
    query.finish()?;
    let session_id = narrow.find(service, actor, session_id).await?.session_id;
    let known: Vec<RunStatus> = statuses.iter().copied().flatten().collect();
    if before.is_some_and(|before| before < 0) || (known.is_empty() && !statuses.is_empty()) {
        return Ok(None);
    }
    // Times are whole seconds: all of the last one belongs to it.
    let ms = |seconds: i64| u64::try_from(seconds).unwrap_or_default().saturating_mul(1000);
    Ok(Some(SessionRuns {
        principal: actor.scope().cloned(),
        statuses: known,
        from_ms: after.map(ms),
        to_ms: before.map(|before| ms(before).saturating_add(999)),
        ..SessionRuns::of(session_id)
    }))
}
