//! Conditions: types, and the one way to set them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::reasons::Reason;

/// The object can be used.
pub const READY: &str = "Ready";
/// The controller is at work, or waits for a dependency.
pub const RECONCILING: &str = "Reconciling";
/// This object must be edited.
pub const STALLED: &str = "Stalled";
/// The referenced Model is there and ready.
pub const MODEL_RESOLVED: &str = "ModelResolved";
/// The credential can be used.
pub const CREDENTIAL_RESOLVED: &str = "CredentialResolved";
/// The Sandbox is suspended.
pub const SUSPENDED: &str = "Suspended";
/// Forbidden destinations are refused.
pub const NETWORK_ISOLATED: &str = "NetworkIsolated";
/// The run ended well.
pub const COMPLETE: &str = "Complete";
/// The run ended with an error or a cancel.
pub const FAILED: &str = "Failed";
/// The run waits for a person.
pub const PAUSED: &str = "Paused";
/// The run has ended, well or not.
pub const FINISHED: &str = "Finished";

/// A condition's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// True.
    True,
    /// False.
    False,
    /// Not known.
    Unknown,
}

impl Truth {
    /// The text in the object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// Sets a condition. `lastTransitionTime` moves only when the status does, so that setting it again changes nothing.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    truth: Truth,
    reason: Reason,
    message: &str,
    generation: i64,
    now: &Time,
) {
    let mut next = Condition {
        type_: kind.to_owned(),
        status: truth.as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: message.to_owned(),
        observed_generation: Some(generation),
        last_transition_time: now.clone(),
    };
    match conditions.iter_mut().find(|c| c.type_ == kind) {
        Some(old) => {
            if old.status == next.status {
                next.last_transition_time = old.last_transition_time.clone();
            }
            *old = next;
        }
        None => conditions.push(next),
    }
}

/// Removes a condition.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|c| c.type_ != kind);
}

/// Whether a condition is true.
#[must_use]
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|c| c.type_ == kind && c.status == "True")
}
