//! The Sandbox of a session. Pure but for the clock in [`incarnation`].

use std::collections::BTreeMap;

use cadre_crds::common::references::ObjectRef;
use cadre_crds::sandbox::{OperatingMode, Sandbox, SandboxSpec, SandboxTemplateSpec, ToolsContainer};
use cadre_protocol::agent::AgentSnapshot;
use cadre_protocol::ids::{ComponentRef, SessionId, hex_sha256};
use hmac::{Hmac, Mac};
use kube::ResourceExt as _;
use kube::core::ObjectMeta;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Sha256;

use super::Wanted;

/// Annotation that proves that an API server made a Sandbox for its session.
pub const PROOF: &str = "cadre.dev/session-proof";
/// Label with the agent's name.
pub const AGENT_LABEL: &str = "cadre.dev/agent";
/// Longest part of a Sandbox's name that is the agent's: 52 without the hash and a hyphen.
const MAX_AGENT_CHARS: usize = 41;
/// Unix seconds of the beginning of 2026: incarnations count from here, so that they fit names for decades.
const FIRST_INCARNATION: u64 = 1_767_225_600;

/// Name of a session's Sandbox: the same on every replica.
#[must_use]
pub fn sandbox_name(component: &ComponentRef, session_id: &SessionId) -> String {
    let hash = hex_sha256(format!("{}/{session_id}", component.name).as_bytes());
    let agent: String = component.name.chars().take(MAX_AGENT_CHARS).collect();
    format!("{}-{}", agent.trim_end_matches('-'), &hash[..10])
}

/// The next incarnation. A Sandbox that is made again after its deletion must not get one that it had: its old pod may
/// still be there. Hence the clock.
#[must_use]
pub fn incarnation(current: Option<u32>, lost: bool) -> u32 {
    let now = crate::domain::service::now_ms() / 1000;
    let by_clock = u32::try_from(now.saturating_sub(FIRST_INCARNATION)).unwrap_or(u32::MAX);
    match current {
        Some(current) if lost => by_clock.max(current.saturating_add(1)),
        Some(current) => current,
        None => by_clock,
    }
}

/// Whether the agent's pods need a container for tools.
#[must_use]
pub fn tools_container(agent: &AgentSnapshot) -> ToolsContainer {
    if agent.needs_sandbox() { ToolsContainer::Enabled } else { ToolsContainer::Disabled }
}

/// The Sandbox to apply.
#[must_use]
pub fn desired(
    wanted: &Wanted,
    proof: &Proof,
    template: SandboxTemplateSpec,
    tools_container: ToolsContainer,
    incarnation: u32,
) -> Sandbox {
    let Wanted { session_id, component } = wanted;
    let name = sandbox_name(component, session_id);
    let mac = proof.of(&component.namespace, &name, &component.name, session_id.as_str());
    let spec = SandboxSpec {
        template,
        operating_mode: OperatingMode::Running,
        tools_container,
        incarnation,
        agent_ref: Some(ObjectRef { name: component.name.clone() }),
        session_id: Some(session_id.to_string()),
    };
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(component.namespace.clone()),
        labels: Some(BTreeMap::from([(AGENT_LABEL.to_owned(), component.name.clone())])),
        annotations: Some(BTreeMap::from([(PROOF.to_owned(), mac)])),
        ..ObjectMeta::default()
    };
    Sandbox { metadata, ..Sandbox::new(&name, spec) }
}

/// What replicas prove with that a Sandbox is theirs.
#[derive(Clone)]
pub struct Proof(Hmac<Sha256>);

impl Proof {
    /// From the key that all replicas have.
    ///
    /// # Errors
    /// Never: HMAC takes keys of any length.
    pub fn new(key: &SecretString) -> Result<Self, hmac::digest::InvalidLength> {
        let mut mac = Hmac::<Sha256>::new_from_slice(key.expose_secret().as_bytes())?;
        mac.update(b"cadre sandbox proof\0");
        Ok(Self(mac))
    }

    fn mac(&self, namespace: &str, name: &str, agent: &str, session: &str) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [namespace, name, agent, session] {
            mac.update(part.as_bytes());
            mac.update(b"\0");
        }
        mac
    }

    fn of(&self, namespace: &str, name: &str, agent: &str, session: &str) -> String {
        use base64::Engine as _;
        let mac = self.mac(namespace, name, agent, session).finalize().into_bytes();
        base64::engine::general_purpose::STANDARD.encode(mac)
    }

    /// Whether a Sandbox carries the proof for its own name, agent and session.
    #[must_use]
    pub fn holds(&self, sandbox: &Sandbox) -> bool {
        use base64::Engine as _;
        let spec = &sandbox.spec;
        let (Some(agent), Some(session)) = (&spec.agent_ref, &spec.session_id) else { return false };
        let Some(shown) = sandbox.annotations().get(PROOF) else { return false };
        let Ok(shown) = base64::engine::general_purpose::STANDARD.decode(shown) else { return false };
        let namespace = sandbox.namespace().unwrap_or_default();
        self.mac(&namespace, &sandbox.name_any(), &agent.name, session).verify_slice(&shown).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(key: &str) -> Proof {
        Proof::new(&SecretString::from(key.to_owned())).unwrap()
    }

    fn made() -> Sandbox {
        let component = ComponentRef::agent("team", "helper");
        let wanted = Wanted { session_id: SessionId::new("a/b c").unwrap(), component };
        desired(&wanted, &proof("k"), SandboxTemplateSpec::default(), ToolsContainer::Enabled, 7)
    }

    #[test]
    fn names_fit_and_differ() {
        let long = ComponentRef::agent("n", "a".repeat(40) + "-bcdefghijkl");
        let other = ComponentRef::agent("n", "a".repeat(40) + "-bcdefghijkm");
        let session = SessionId::new("s").unwrap();
        let name = sandbox_name(&long, &session);
        assert!(name.len() <= 52 && !name.contains("--"), "{name}");
        assert_ne!(name, sandbox_name(&other, &session));
        assert_ne!(name, sandbox_name(&long, &SessionId::new("t").unwrap()));
    }

    #[test]
    fn a_proof_holds_for_one_session_and_key() {
        let sandbox = made();
        assert!(proof("k").holds(&sandbox));
        assert!(!proof("other").holds(&sandbox));
        let mut moved = sandbox.clone();
        moved.spec.session_id = Some("another".into());
        assert!(!proof("k").holds(&moved));
        let mut bare = sandbox;
        bare.metadata.annotations = None;
        assert!(!proof("k").holds(&bare));
    }

    #[test]
    fn incarnations_only_grow() {
        assert_eq!(incarnation(Some(7), false), 7);
        assert!(incarnation(Some(7), true) > 7);
        assert_eq!(incarnation(Some(900_000_000), true), 900_000_001);
        assert!(incarnation(None, false) > 28_000_000);
    }
}
