//! Sandboxes: one pod each, whose UID in status is what a worker's identity is checked against.
//!
//! A session's pod that has ended is not replaced under the same incarnation: status says so, and the API server raises
//! `spec.incarnation`. A Sandbox made by hand has nobody to do that, so its pod comes again under the same name: when it has
//! ended, and when the template is another than the one that it was made from.
//!
//! As long as there are pods, what closes their network is put back whenever it is changed or deleted.

pub mod apply;
pub mod decide;
pub mod evictions;
pub mod prerequisites;
pub mod status;
pub mod validate;

use std::sync::Arc;
use std::time::Duration;

use cadre_crds::common::conditions::{NETWORK_ISOLATED, READY};
use cadre_crds::common::reasons::Reason;
use cadre_crds::sandbox::{Sandbox, SandboxStatus};
use kube::ResourceExt;

use self::apply::Applier;
use self::decide::{Decision, Want};
use self::status::{OUT_OF_MEMORY, View, memory_of};
use crate::caches::Caches;
use crate::conditions::{reason, truth};
use crate::context::{Shared, now};
use crate::driver::{Outcome, Reconciler};
use crate::error::Error;
use crate::events::Story;
use crate::feed::state::Name;
use crate::objects::pod;
use crate::status::{Urgency, Written};

/// Time between looks while something of Kubernetes's own must pass: a deletion, a quota, a missing address.
const RETRY: Duration = Duration::from_secs(2);

/// Reconciles Sandboxes.
pub struct Controller {
    shared: Arc<Shared>,
    caches: Arc<Caches>,
    applier: Applier,
}

impl Controller {
    /// For a scope.
    #[must_use]
    pub fn new(shared: Arc<Shared>, caches: Arc<Caches>) -> Self {
        let applier = Applier::new(shared.clone(), caches.clone());
        Self { shared, caches, applier }
    }

    /// Does what is wanted and says what is then to be seen.
    async fn carry_out(&self, sandbox: &Sandbox, want: Want) -> Result<View, Error> {
        Ok(match want {
            Want::Nothing { leaving } => View::Suspended { leaving },
            Want::Keep(pod) => View::Pod(pod),
            Want::Wait(why) => View::Waiting { reason: Reason::Progressing, message: why.to_owned() },
            Want::Create => self.applier.create(sandbox).await?,
            Want::Lost { known: true } => View::Lost,
            Want::Lost { known: false } => match self.applier.find(sandbox).await? {
                Some(pod) => View::Pod(pod),
                None => View::Lost,
            },
        })
    }
}

impl Reconciler for Controller {
    type Kind = Sandbox;
    const KIND: &'static str = "Sandbox";

    async fn reconcile(&self, sandbox: &Sandbox) -> Result<Outcome, Error> {
        if sandbox.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::default());
        }
        let name = Name::new(&sandbox.namespace().unwrap_or_default(), &sandbox.name_any());
        let old: SandboxStatus = self.shared.status.latest(&sandbox.metadata, sandbox.status.as_ref());
        let (problem, pods) = (validate::problem(&sandbox.spec), self.caches.pods.of(&name));
        let is_valid = problem.is_none();
        let (view, remove) = match problem {
            Some(problem) => (View::Invalid(problem), Vec::new()),
            None => {
                let Decision { want, remove } = decide::decide(sandbox, &old, &pods);
                (self.carry_out(sandbox, want).await?, remove)
            }
        };
        // Before anything else: a worker is admitted by the UID in status.
        let report = self.shared.feed.isolation(&name.namespace, &name.name);
        let new = status::observe(sandbox, &old, &view, report.as_ref(), &now());
        let (written, _) = self.shared.write::<Sandbox>(&sandbox.metadata, &old, &new, Urgency::Now).await?;
        if !pods.is_empty() {
            self.applier.guard(sandbox, is_valid).await?;
        }
        for pod in &remove {
            self.applier.remove(pod).await?;
        }
        let waits = !remove.is_empty() || matches!(view, View::Waiting { .. });
        let stories = if written == Written::Yes { stories(sandbox, &old, &new) } else { Vec::new() };
        Ok(Outcome { again: waits.then_some(RETRY), stories })
    }
}

/// What people should know of a change.
fn stories(sandbox: &Sandbox, old: &SandboxStatus, new: &SandboxStatus) -> Vec<Story> {
    let mut stories = Vec::new();
    if new.pod_uid.is_some() && new.pod_uid != old.pod_uid {
        let name = pod::name(&sandbox.name_any(), sandbox.spec.incarnation);
        stories.push(Story::normal("PodCreated", "CreatePod", format!("created pod {name}")));
    }
    let message = |kind: &str| {
        let condition = new.conditions.iter().find(|condition| condition.type_ == kind);
        condition.map(|condition| condition.message.clone()).unwrap_or_default()
    };
    let after = reason(&new.conditions, READY);
    if reason(&old.conditions, READY) != after {
        stories.extend(match after {
            "PodEnded" => Some(Story::warning("PodEnded", "WatchPod", message(READY))),
            "EvictedAgain" => Some(Story::warning("EvictedAgain", "WatchPod", message(READY))),
            "PodFailed" => Some(Story::warning("PodFailed", "WatchPod", message(READY))),
            "InvalidSpec" => Some(Story::warning("InvalidSpec", "Validate", message(READY))),
            "Suspended" => Some(Story::normal("Suspended", "Suspend", message(READY))),
            _ => None,
        });
    }
    let memory = |status: &SandboxStatus| {
        let ready = status.conditions.iter().find(|condition| condition.type_ == READY);
        ready.and_then(|condition| memory_of(&condition.message)).map(str::to_owned)
    };
    if let Some(note) = memory(new).filter(|note| memory(old).as_ref() != Some(note)) {
        stories.push(Story::warning(OUT_OF_MEMORY, "WatchPod", note));
    }
    let isolated = |status: &SandboxStatus| truth(&status.conditions, NETWORK_ISOLATED).to_owned();
    if isolated(new) == "False" && isolated(old) != "False" {
        stories.push(Story::warning("NetworkOpen", "ProbeNetwork", message(NETWORK_ISOLATED)));
    }
    stories
}
