//! What a run that waits for a person takes and gives.

use async_trait::async_trait;
use cadre_protocol::ids::RunId;
use cadre_protocol::requirement::RunRequirement;

use crate::branches::KeyOf;
use crate::error::StoreError;
use crate::rows::{EventChunk, Principal, RunRow};

/// A call that a run has paused for.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalRow {
    /// The call, with what was said about it.
    pub requirement: RunRequirement,
    /// Whether nothing was decided.
    pub is_open: bool,
    /// Rises with each change.
    pub version: u64,
    /// Number of the journal entry that told of it.
    pub position: u64,
    /// Who has decided.
    pub decided_by: Option<String>,
}

/// Decisions about calls of a paused run.
#[derive(Debug, Clone)]
pub struct Decisions {
    /// The run.
    pub run_id: RunId,
    /// Requirements with the answers, and the version that each was read in.
    pub changes: Vec<(u64, RunRequirement)>,
    /// Who decides.
    pub decided_by: Principal,
    /// Names the run from then on.
    pub key: Option<KeyOf>,
    /// Now, Unix milliseconds.
    pub at_ms: u64,
}

/// What came of decisions.
#[derive(Debug, Clone)]
pub enum DecideOutcome {
    /// All is decided: the run waits for a worker, at the same place of its line.
    GoesOn {
        /// The run, PENDING.
        run: Box<RunRow>,
    },
    /// Calls are still open.
    StillPaused {
        /// The run, PAUSED.
        run: Box<RunRow>,
        /// The event that tells which.
        chunk: EventChunk,
    },
    /// Run or calls are not as they were when that was decided, or the key names a run already: nothing was written.
    Changed,
}

/// What an approval is wanted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumption {
    /// Run.
    pub run_id: RunId,
    /// The model's id of the call.
    pub call_id: String,
    /// Tool.
    pub tool_name: String,
    /// Of the arguments that are about to be used.
    pub arguments_sha256: String,
    /// Now, Unix milliseconds.
    pub at_ms: u64,
}

/// Runs that wait for a person.
#[async_trait]
pub trait Approvals: Send + Sync {
    /// The calls that a run has paused for, decided ones too, oldest first.
    async fn approvals(&self, run_id: &RunId) -> Result<Vec<ApprovalRow>, StoreError>;

    /// Records decisions.
    async fn decide(&self, decisions: Decisions) -> Result<DecideOutcome, StoreError>;

    /// Spends the approval of a call. False when there is none for exactly this, or it is spent: of several that try, one
    /// gets it.
    async fn consume(&self, wanted: Consumption) -> Result<bool, StoreError>;
}
