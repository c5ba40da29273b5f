//! What the engine asks of the world. The link and the exec source implement these; tests use fakes.

use std::sync::Arc;

use async_trait::async_trait;
use cadre_protocol::exec::{ExecBody, ExecOp};
use cadre_protocol::ids::BlobDigest;
use cadre_protocol::journal::Entry;
use cadre_protocol::model::{ModelDelta, ModelError, ModelReply, ModelRequest};
use cadre_protocol::worker::RemoteToolResult;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::uploads::Brought;

/// The durable record of one run. When the right to write is lost these wait for ever; the run is ended by
/// [`Signal::Abort`] instead, so that no caller needs to tell the two apart.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Hands entries over, in order and without gaps.
    fn append(&self, first_index: u64, entries: Vec<Entry>);
    /// Waits until the journal can take more.
    async fn room(&self);
    /// Waits until all entries below this index are durable.
    async fn durable(&self, below: u64);
}

/// A piece of news about a model call.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// A piece of the answer.
    Delta(ModelDelta),
    /// The call was made again from the start: pieces so far are void.
    Restarted,
    /// The answer; the last event.
    Reply(Box<ModelReply>),
    /// No answer; the last event.
    Failed(ModelError),
}

/// A model call in flight. Dropping it takes the call back.
pub struct ModelStream {
    /// The news.
    pub events: mpsc::UnboundedReceiver<ModelEvent>,
    /// Takes the call back when dropped.
    pub guard: Box<dyn Send>,
}

/// Access to the agent's model.
pub trait Models: Send + Sync {
    /// Makes a call.
    fn call(&self, request: ModelRequest) -> ModelStream;
}

/// A request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Lost {
    /// Why, for the model and for people.
    pub reason: String,
    /// Whether it may have had an effect all the same; else it was never begun.
    pub may_have_happened: bool,
}

/// Tools that the API server runs.
#[async_trait]
pub trait RemoteTools: Send + Sync {
    /// Runs a tool for the call of that id. `repeatable` says that running it twice does no harm. Dropping the future takes the call back.
    ///
    /// # Errors
    /// When there is no answer.
    async fn call(
        &self,
        call_id: &str,
        tool: &str,
        arguments: Map<String, Value>,
        repeatable: bool,
    ) -> Result<RemoteToolResult, Lost>;
}

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes, base64.
    pub data: String,
    /// Whether it is the last one.
    pub last: bool,
}

/// Files that came with the session's runs.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// A piece from this byte on.
    ///
    /// # Errors
    /// Why the file can't be had, for people.
    async fn chunk(&self, digest: &BlobDigest, offset: u64) -> Result<Chunk, String>;
}

/// The sandbox's workspace, reached through exec-server. All that it says is untrusted.
#[async_trait]
pub trait Workspace: Send + Sync {
    /// Waits, within bounds, until exec-server is connected; gives the workspace's identity.
    ///
    /// # Errors
    /// When it does not come.
    async fn ready(&self) -> Result<String, Lost>;
    /// Carries out a request. Dropping the future kills what it started.
    ///
    /// # Errors
    /// When there is no answer.
    async fn request(&self, op: ExecOp) -> Result<ExecBody, Lost>;
    /// What this process has brought into it.
    fn brought(&self) -> &Brought;
}

/// Whether tools may run in the pod's network (security rule 13).
#[async_trait]
pub trait Isolation: Send + Sync {
    /// Starts looking, so that a later question is answered at once.
    fn start(&self);
    /// Whether tools may run.
    async fn allows_tools(&self) -> bool;
}

/// Unix time in milliseconds.
pub type Clock = fn() -> u64;

/// The world of one run.
#[derive(Clone)]
pub struct Host {
    /// Its record.
    pub journal: Arc<dyn Journal>,
    /// Its model.
    pub models: Arc<dyn Models>,
    /// Tools of the API server.
    pub remote: Arc<dyn RemoteTools>,
    /// Files of its session.
    pub blobs: Arc<dyn Blobs>,
    /// Its workspace, where there is one.
    pub workspace: Option<Arc<dyn Workspace>>,
    /// The network.
    pub isolation: Arc<dyn Isolation>,
    /// The time.
    pub clock: Clock,
}

/// What a run is told from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Signal {
    /// Go on.
    #[default]
    Go,
    /// End as cancelled, for this reason.
    Cancel(String),
    /// End at once and write nothing more.
    Abort,
}

/// The reins of a run.
#[derive(Debug, Clone)]
pub struct Control {
    /// The newest signal.
    pub signal: watch::Receiver<Signal>,
    /// The process is ending: start nothing new.
    pub drain: CancellationToken,
    /// One for each run that the process carries out at once.
    pub slots: Arc<Semaphore>,
}

impl Control {
    /// Waits for a signal other than [`Signal::Go`].
    pub async fn signalled(&self) -> Signal {
        let mut signal = self.signal.clone();
        match signal.wait_for(|signal| *signal != Signal::Go).await {
            Ok(signal) => signal.clone(),
            Err(_) => Signal::Abort,
        }
    }

    /// Waits until the process has a place for the run, or ends: a run that learns of that has nothing to do.
    pub async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            place = self.slots.clone().acquire_owned() => place.ok(),
            () = self.drain.cancelled() => None,
        }
    }

    /// Waits for [`Signal::Abort`].
    pub async fn aborted(&self) {
        let mut signal = self.signal.clone();
        // An error means that whoever holds the reins is gone, which is the same.
        let _ = signal.wait_for(|signal| *signal == Signal::Abort).await;
    }
}
