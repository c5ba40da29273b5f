//! How many Sandboxes a namespace may have at once.
//!
//! Counted from what is watched and what this process is asking for. Replicas that ask at the same moment may pass the limit
//! by a few; a ResourceQuota on Sandboxes is exact.

use cadre_crds::sandbox::OperatingMode;

use super::{Key, PlacementError, SandboxPlacement, State};

/// Keeps a place until the Sandbox is known.
pub(super) struct Reserved<'a> {
    placement: &'a SandboxPlacement,
    key: &'a Key,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.placement.state().asked.remove(self.key);
    }
}

impl SandboxPlacement {
    /// Keeps a place for a session's Sandbox.
    pub(super) fn reserve<'a>(&'a self, key: &'a Key) -> Result<Reserved<'a>, PlacementError> {
        let mut state = self.state();
        if !has_room(&state, key, self.max_sandboxes) {
            return Err(PlacementError::Full(told(&key.0, self.max_sandboxes)));
        }
        state.asked.insert(key.clone());
        drop(state);
        Ok(Reserved { placement: self, key })
    }
}

/// Whether the session has a Sandbox that takes a place, or its namespace has room for one.
pub(super) fn has_room(state: &State, key: &Key, most: u32) -> bool {
    if most == 0 || takes_place(state, key) || state.asked.contains(key) {
        return true;
    }
    let known = state.known.keys().filter(|known| known.0 == key.0 && takes_place(state, known)).count();
    let asked = state.asked.iter().filter(|asked| asked.0 == key.0 && !takes_place(state, asked)).count();
    known + asked < usize::try_from(most).unwrap_or(usize::MAX)
}

/// What a run waits for, in words.
pub(super) fn told(namespace: &str, most: u32) -> String {
    format!("a sandbox: namespace {namespace} has {most}, as many as it may have at once")
}

/// Whether there is a Sandbox of a session with a pod, or about to have one.
fn takes_place(state: &State, key: &Key) -> bool {
    state.known.get(key).is_some_and(|sandbox| {
        sandbox.spec.session_id.is_some() && sandbox.spec.operating_mode == OperatingMode::Running
    })
}
