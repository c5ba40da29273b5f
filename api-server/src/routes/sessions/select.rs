//! Which runs of a session a list shows.

use cadre_protocol::run::RunStatus;
use cadre_store::rows::{RunFilter, RunRow};

use super::super::runs::lookup;
use super::find::Narrow;
use crate::auth::actor::Actor;
use crate::domain::Service;
use crate::routes::error::ApiError;
use crate::routes::fields::Fields;

/// The runs of a session that a query asks for, oldest first. Statuses match any of those given, in any case.
///
/// # Errors
/// 404 for a session that is not the caller's, 422 for a wrong query, or what the record says.
pub async fn runs(
    service: &Service,
    actor: &Actor,
    session_id: &str,
    mut query: Fields,
) -> Result<Vec<RunRow>, ApiError> {
    let narrow = Narrow::read(&mut query);
    let after = query.integer("created_after");
    let before = query.integer("created_before");
    let named = |(name, value): &(String, String)| {
        (name == "status" && !value.is_empty()).then(|| RunStatus::parse(&value.to_ascii_uppercase()))
    };
    let statuses: Vec<Option<RunStatus>> = query.pairs().iter().filter_map(named).collect();
    query.finish()?;
    let session_id = narrow.find(service, actor, session_id).await?.session_id;
    let filter = RunFilter { principal: actor.scope().cloned(), session_id: Some(session_id), ..RunFilter::default() };
    let mut runs = lookup::all_runs(service, filter).await?;
    runs.retain(|run| {
        let at = i64::try_from(run.created_at_ms / 1000).unwrap_or(i64::MAX);
        after.is_none_or(|after| at >= after)
            && before.is_none_or(|before| at <= before)
            && (statuses.is_empty() || statuses.contains(&Some(run.status)))
    });
    Ok(runs)
}
