//! The engine's ports over the link, for one run.

use std::sync::Arc;

use async_trait::async_trait;
use cadre_protocol::ids::BlobDigest;
use cadre_protocol::journal::Entry;
use cadre_protocol::model::ModelRequest;
use cadre_protocol::worker::{HeldRun, RemoteToolResult, WorkerFrame};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

use super::hub::Hub;
use super::state::{Reins, Waiter};
use crate::engine::ports::{Blobs, Chunk, Journal, Lost, ModelStream, Models, RemoteTools};

/// Bytes without an acknowledgement above which a run waits.
const WAITING_BYTES: usize = 4 << 20;

/// The link as one run sees it.
#[derive(Clone)]
pub struct RunLink {
    hub: Hub,
    run: HeldRun,
    durable: watch::Receiver<u64>,
    waiting: watch::Receiver<usize>,
}

impl RunLink {
    /// The link for this run.
    #[must_use]
    pub fn new(hub: Hub, run: HeldRun, reins: &Reins) -> Arc<Self> {
        Arc::new(Self { hub, run, durable: reins.durable.clone(), waiting: reins.waiting.clone() })
    }

    fn open(&self, waiter: Waiter, frame: impl FnOnce(u64) -> WorkerFrame) -> Guard {
        let call = self.hub.send(|state| state.open(self.run.clone(), waiter, frame));
        Guard { hub: self.hub.clone(), call }
    }
}

/// Takes a call back when dropped. A call that was answered is not known any more, so nothing happens then.
struct Guard {
    hub: Hub,
    call: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.hub.send(|state| state.take_back(self.call));
    }
}

#[async_trait]
impl Journal for RunLink {
    fn append(&self, first_index: u64, entries: Vec<Entry>) {
        self.hub.send(|state| state.append(&self.run, first_index, entries));
    }

    async fn room(&self) {
        until(&self.waiting, |waiting| *waiting < WAITING_BYTES).await;
    }

    async fn durable(&self, below: u64) {
        until(&self.durable, |durable| *durable >= below).await;
    }
}

/// Waits for a value; for ever when the run is no longer held.
async fn until<T>(watched: &watch::Receiver<T>, fits: impl FnMut(&T) -> bool) {
    let mut watched = watched.clone();
    if watched.wait_for(fits).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Models for RunLink {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let (sender, events) = mpsc::unbounded_channel();
        let HeldRun { run_id, epoch } = self.run.clone();
        let request = Box::new(request);
        let guard = self.open(Waiter::Model(sender), |call| WorkerFrame::ModelCall { call, run_id, epoch, request });
        ModelStream { events, guard: Box::new(guard) }
    }
}

#[async_trait]
impl RemoteTools for RunLink {
    async fn call(
        &self,
        call_id: &str,
        tool: &str,
        arguments: Map<String, Value>,
        repeatable: bool,
    ) -> Result<RemoteToolResult, Lost> {
        let (sender, result) = oneshot::channel();
        let HeldRun { run_id, epoch } = self.run.clone();
        let (tool_call_id, tool) = (call_id.to_owned(), tool.to_owned());
        let _guard = self.open(Waiter::Tool(sender, repeatable), |call| WorkerFrame::ToolCall {
            call,
            run_id,
            epoch,
            tool_call_id,
            tool,
            arguments,
        });
        match result.await {
            Ok(result) => result,
            Err(_) => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Blobs for RunLink {
    async fn chunk(&self, digest: &BlobDigest, offset: u64) -> Result<Chunk, String> {
        let (sender, chunk) = oneshot::channel();
        let HeldRun { run_id, epoch } = self.run.clone();
        let digest = digest.clone();
        let _guard =
            self.open(Waiter::Blob(sender), |call| WorkerFrame::GetBlob { call, run_id, epoch, digest, offset });
        match chunk.await {
            Ok(chunk) => chunk,
            Err(_) => std::future::pending().await,
        }
    }
}
