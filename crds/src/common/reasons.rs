//! Every `reason` that a condition may have.

use std::fmt;

/// Why a condition is as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// All is well.
    Ready,
    /// The controller is at work.
    Progressing,
    /// A referenced object is there and ready.
    Resolved,
    /// A referenced Model does not exist.
    ModelNotFound,
    /// A referenced Model is not ready.
    ModelNotReady,
    /// A referenced Agent does not exist.
    AgentNotFound,
    /// The Agent has a budget, and the Model no prices.
    PriceUnknown,
    /// The Model needs no credential.
    CredentialNotRequired,
    /// The credential can be used.
    CredentialPresent,
    /// Secret or key is missing.
    CredentialMissing,
    /// The Secret is not marked for use, or not for this host.
    CredentialNotAllowed,
    /// The API server has not yet said.
    CredentialUnknown,
    /// The object must be edited.
    InvalidSpec,
    /// New runs are refused.
    Suspended,
    /// The pod is on its way.
    PodPending,
    /// The pod runs.
    PodRunning,
    /// The pod has ended.
    PodEnded,
    /// The pod was evicted as one before it, for the same cause.
    EvictedAgain,
    /// The pod cannot start: image, quota or policy.
    PodFailed,
    /// Forbidden destinations are refused.
    NetworkIsolated,
    /// Forbidden destinations can be reached.
    NetworkOpen,
    /// Waits for its turn.
    Pending,
    /// Is being executed.
    Running,
    /// Waits for a person.
    Paused,
    /// Ended well.
    Completed,
    /// Ended with an error.
    Failed,
    /// Ended by a cancel.
    Cancelled,
    /// The API server refused the run.
    Rejected,
    /// The API server can't be reached.
    ApiServerUnavailable,
}

impl Reason {
    /// The text in conditions and events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Progressing => "Progressing",
            Self::Resolved => "Resolved",
            Self::ModelNotFound => "ModelNotFound",
            Self::ModelNotReady => "ModelNotReady",
            Self::AgentNotFound => "AgentNotFound",
            Self::PriceUnknown => "PriceUnknown",
            Self::CredentialNotRequired => "CredentialNotRequired",
            Self::CredentialPresent => "CredentialPresent",
            Self::CredentialMissing => "CredentialMissing",
            Self::CredentialNotAllowed => "CredentialNotAllowed",
            Self::CredentialUnknown => "CredentialUnknown",
            Self::InvalidSpec => "InvalidSpec",
            Self::Suspended => "Suspended",
            Self::PodPending => "PodPending",
            Self::PodRunning => "PodRunning",
            Self::PodEnded => "PodEnded",
            Self::EvictedAgain => "EvictedAgain",
            Self::PodFailed => "PodFailed",
            Self::NetworkIsolated => "NetworkIsolated",
            Self::NetworkOpen => "NetworkOpen",
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
            Self::Rejected => "Rejected",
            Self::ApiServerUnavailable => "ApiServerUnavailable",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
