//! Models: whether they can be used, as far as that can be known without calling the provider.

pub mod status;
pub mod validate;

use std::sync::Arc;

use cadre_crds::common::conditions::CREDENTIAL_RESOLVED;
use cadre_crds::common::reasons::Reason;
use cadre_crds::model::{Model, ModelStatus};
use kube::ResourceExt;

use crate::conditions::reason;
use crate::context::{Shared, now};
use crate::driver::{Outcome, Reconciler};
use crate::error::Error;
use crate::events::Story;
use crate::status::{Urgency, Written};

/// Reconciles Models.
pub struct Controller {
    /// What all controllers share.
    pub shared: Arc<Shared>,
}

impl Reconciler for Controller {
    type Kind = Model;
    const KIND: &'static str = "Model";

    async fn reconcile(&self, model: &Model) -> Result<Outcome, Error> {
        let report = self.shared.feed.credential(&model.namespace().unwrap_or_default(), &model.name_any());
        let problem = validate::problem(&model.spec);
        let old: ModelStatus = self.shared.status.latest(&model.metadata, model.status.as_ref());
        let generation = model.metadata.generation.unwrap_or_default();
        let credential = status::credential(&model.spec, generation, report.as_ref());
        let new = status::observe(&old, problem.as_deref(), &credential, generation, &now());
        let (written, _) = self.shared.write::<Model>(&model.metadata, &old, &new, Urgency::Now).await?;
        let stories = if written == Written::Yes { stories(&old, &new) } else { Vec::new() };
        Ok(Outcome { again: None, stories })
    }
}

/// What people should know of a change.
fn stories(old: &ModelStatus, new: &ModelStatus) -> Vec<Story> {
    let (before, after) = (reason(&old.conditions, CREDENTIAL_RESOLVED), reason(&new.conditions, CREDENTIAL_RESOLVED));
    if before == after {
        return Vec::new();
    }
    let condition = new.conditions.iter().find(|condition| condition.type_ == CREDENTIAL_RESOLVED);
    let message = condition.map(|condition| condition.message.clone()).unwrap_or_default();
    let warnings = [Reason::CredentialMissing, Reason::CredentialNotAllowed];
    let warning = warnings.into_iter().find(|reason| reason.as_str() == after);
    let mended = after == Reason::CredentialPresent.as_str() && warnings.iter().any(|reason| reason.as_str() == before);
    match warning {
        Some(reason) => vec![Story::warning(reason.as_str(), "ResolveCredential", message)],
        None if mended => vec![Story::normal(Reason::CredentialPresent.as_str(), "ResolveCredential", message)],
        None => Vec::new(),
    }
}
