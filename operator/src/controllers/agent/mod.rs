//! Agents: whether they can run, the revision that new runs get, and how busy they are.

pub mod status;

use std::sync::Arc;

use cadre_crds::agent::{Agent, AgentStatus};
use cadre_crds::common::conditions::{MODEL_RESOLVED, READY};
use cadre_crds::common::reasons::Reason;
use cadre_crds::resolve::resolve;
use cadre_protocol::ids::ComponentRef;
use kube::ResourceExt;

use self::status::View;
use crate::caches::Caches;
use crate::conditions::reason;
use crate::context::{Shared, now};
use crate::driver::{Outcome, Reconciler};
use crate::error::Error;
use crate::events::Story;
use crate::status::{Urgency, Written};

/// Reconciles Agents.
pub struct Controller {
    /// What all controllers share.
    pub shared: Arc<Shared>,
    /// The scope's caches.
    pub caches: Arc<Caches>,
}

impl Reconciler for Controller {
    type Kind = Agent;
    const KIND: &'static str = "Agent";

    async fn reconcile(&self, agent: &Agent) -> Result<Outcome, Error> {
        let (namespace, name) = (agent.namespace().unwrap_or_default(), agent.name_any());
        let model = self.caches.model(&namespace, &agent.spec.model_ref.name);
        let component = ComponentRef::agent(&namespace, name.clone());
        let default_namespace = &self.shared.settings.default_namespace;
        let snapshot = resolve(&component, default_namespace, &agent.spec, model.as_ref().map(|model| &model.spec));
        let report = self.shared.feed.agent(&namespace, &name);
        let view = View {
            snapshot: &snapshot,
            model: model.as_ref(),
            model_name: &agent.spec.model_ref.name,
            report: report.as_ref(),
        };
        let old: AgentStatus = self.shared.status.latest(&agent.metadata, agent.status.as_ref());
        let new = status::observe(&old, &view, agent.metadata.generation.unwrap_or_default(), &now());
        let urgency = if status::differ_in_more_than_numbers(&old, &new) { Urgency::Now } else { Urgency::Paced };
        let (written, again) = self.shared.write::<Agent>(&agent.metadata, &old, &new, urgency).await?;
        let stories = if written == Written::Yes { stories(&old, &new) } else { Vec::new() };
        Ok(Outcome { again, stories })
    }
}

/// What people should know of a change.
fn stories(old: &AgentStatus, new: &AgentStatus) -> Vec<Story> {
    let after = reason(&new.conditions, READY);
    if reason(&old.conditions, READY) == after {
        return Vec::new();
    }
    let message = |kind: &str| {
        let condition = new.conditions.iter().find(|condition| condition.type_ == kind);
        condition.map(|condition| condition.message.clone()).unwrap_or_default()
    };
    for missing in [Reason::ModelNotFound, Reason::ModelNotReady, Reason::PriceUnknown] {
        if missing.as_str() == after {
            return vec![Story::warning(missing.as_str(), "ResolveModel", message(MODEL_RESOLVED))];
        }
    }
    match after {
        "InvalidSpec" => vec![Story::warning("InvalidSpec", "Resolve", message(READY))],
        "Suspended" => vec![Story::normal("Suspended", "Suspend", message(READY))],
        "Ready" => vec![Story::normal("Ready", "Resolve", message(READY))],
        _ => Vec::new(),
    }
}
