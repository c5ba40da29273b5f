//! Frames between an engine and the API server's worker port.
//!
//! One WebSocket a worker (`GET /worker/v1/link`, bearer token, JSON text frames), opened by the worker. A connection
//! that breaks loses nothing: the worker keeps unacknowledged entries, dials in again with the same
//! `registration` and sends them again. Model calls, tools of the API server and blobs travel on the same link, so
//! that one authenticated connection carries all of a worker's authority.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::agent::AgentSnapshot;
use crate::ids::{BlobDigest, Epoch, Revision, RunId, SessionId, WorkerId};
use crate::journal::{Batch, Progress, RecordedEffect};
use crate::message::Message;
use crate::model::{ModelDelta, ModelError, ModelReply, ModelRequest};
use crate::run::{RunInput, Uploads};

/// Version of these frames. A server refuses what it does not know.
pub const VERSION: u32 = 1;
/// Path of the link on the worker port.
pub const LINK_PATH: &str = "/worker/v1/link";
/// Most bytes of a blob in one frame, before encoding.
pub const BLOB_CHUNK_BYTES: usize = 1 << 20;
/// Seconds between heartbeats.
pub const HEARTBEAT_SECONDS: u64 = 5;
/// Heartbeats that may be missed before a worker counts as lost.
pub const MISSED_HEARTBEATS: u64 = 3;
/// Largest frame, in bytes, in either direction.
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// Bytes that each end reads at once, for nearly all frames are short: a larger buffer is allocated anew for each of them.
pub const READ_BYTES: usize = 16 << 10;
/// Audience of the token that a pod shows.
pub const TOKEN_AUDIENCE: &str = "cadre-api";

/// A worker's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Random for each engine process: a restarted engine is another writer.
    pub registration: String,
    /// Sandbox of a pod: namespace and name. Absent for workers of `cadre dev`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxIdentity>,
    /// Runs that the worker is executing.
    #[serde(default)]
    pub runs: Vec<HeldRun>,
}

/// The Sandbox that a pod says it belongs to; the token proves it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SandboxIdentity {
    /// Namespace.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

/// A run that a worker holds across connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRun {
    /// The run.
    pub run_id: RunId,
    /// Under this epoch.
    pub epoch: Epoch,
}

/// A run for a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The run.
    pub run_id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// The right to write.
    pub epoch: Epoch,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The agent, resolved when the run was accepted.
    pub agent: AgentSnapshot,
    /// Its content address.
    pub revision: Revision,
    /// What is asked.
    pub input: RunInput,
    /// Earlier turns, oldest first.
    #[serde(default)]
    pub history: Vec<Message>,
    /// What earlier attempts did.
    #[serde(default)]
    pub progress: Progress,
    /// What earlier tool calls of the session did to workspaces, oldest first.
    #[serde(default)]
    pub effects: Vec<RecordedEffect>,
    /// Files that came with earlier runs of the session: a new workspace gets them again.
    #[serde(default, skip_serializing_if = "Uploads::is_empty")]
    pub uploads: Uploads,
    /// State of the session.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub session_state: Map<String, Value>,
    /// Unix time in milliseconds after which the run has timed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// The result of a tool that the API server runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteToolResult {
    /// Text for the model.
    pub content: String,
    /// Whether it reports a failure.
    pub error: bool,
}

/// From the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WorkerFrame {
    /// First frame.
    Hello(Hello),
    /// Entries for the journal. Answered by `Ack`, or `Fenced`.
    Append(Batch),
    /// A model call. Answered by any number of `ModelDelta`, then `ModelReply` or `ModelFailed`.
    ModelCall {
        /// Number chosen by the worker, unique on this connection.
        call: u64,
        /// The run.
        run_id: RunId,
        /// The writer's epoch.
        epoch: Epoch,
        /// The request.
        request: Box<ModelRequest>,
    },
    /// A tool that the API server runs (`http`). Answered by `ToolResult`.
    ToolCall {
        /// Number chosen by the worker, unique on this connection, shared with model calls.
        call: u64,
        /// The run.
        run_id: RunId,
        /// The writer's epoch.
        epoch: Epoch,
        /// The model's id of the call: what a person has decided about it is found by that.
        #[serde(default)]
        tool_call_id: String,
        /// Tool name.
        tool: String,
        /// Arguments.
        arguments: Map<String, Value>,
    },
    /// A piece of a file that came with a run of the session. Answered by `BlobChunk` or `BlobFailed`.
    GetBlob {
        /// Number chosen by the worker, unique on this connection, shared with the other calls.
        call: u64,
        /// The run.
        run_id: RunId,
        /// The writer's epoch.
        epoch: Epoch,
        /// Which blob.
        digest: BlobDigest,
        /// First byte.
        offset: u64,
    },
    /// The answer to a call is no longer wanted.
    CancelCall {
        /// The call.
        call: u64,
    },
    /// Whether the pod's network refuses what it must (security rule 13).
    Isolation {
        /// Whether it does.
        isolated: bool,
        /// What was tried.
        detail: String,
    },
    /// Every [`HEARTBEAT_SECONDS`].
    Heartbeat {},
    /// The worker will take no further run; those it holds are handed over or finished.
    Draining {},
}

/// To the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerFrame {
    /// Answer to `Hello`.
    Welcome {
        /// The worker's id.
        worker_id: WorkerId,
    },
    /// A run to execute. Sent again on a new connection if the worker does not hold it.
    Assign(Box<Assignment>),
    /// Entries below `next_index` are durable.
    Ack {
        /// The run.
        run_id: RunId,
        /// The epoch of the batch.
        epoch: Epoch,
        /// First number that is not durable.
        next_index: u64,
    },
    /// The epoch is over: stop the run, write nothing.
    Fenced {
        /// The run.
        run_id: RunId,
        /// The epoch that was refused.
        epoch: Epoch,
    },
    /// A batch breaks a limit or rule; the run is ended by the server.
    Refused {
        /// The run.
        run_id: RunId,
        /// The epoch of the batch.
        epoch: Epoch,
        /// Why.
        reason: String,
    },
    /// Stop the run, kill its tool, report `Cancelled`.
    Cancel {
        /// The run.
        run_id: RunId,
        /// Under this epoch.
        epoch: Epoch,
        /// Who or what.
        reason: String,
    },
    /// A piece of an answer.
    ModelDelta {
        /// The call.
        call: u64,
        /// The piece.
        delta: ModelDelta,
    },
    /// An answer.
    ModelReply {
        /// The call.
        call: u64,
        /// The reply.
        reply: Box<ModelReply>,
    },
    /// No answer.
    ModelFailed {
        /// The call.
        call: u64,
        /// Why.
        error: ModelError,
    },
    /// A tool's result.
    ToolResult {
        /// The call.
        call: u64,
        /// The result.
        result: RemoteToolResult,
    },
    /// A piece of a blob.
    BlobChunk {
        /// The call.
        call: u64,
        /// Bytes, base64; empty when the blob ends at or before the offset.
        data: String,
        /// Whether this is the last piece.
        last: bool,
    },
    /// A blob that can't be had.
    BlobFailed {
        /// The call.
        call: u64,
        /// Why.
        reason: String,
    },
    /// Answer to `Heartbeat`.
    Heartbeat {},
    /// The connection ends for a reason that dialling in again won't mend; the worker exits.
    Rejected {
        /// Why.
        reason: String,
    },
}
