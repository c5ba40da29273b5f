//! The engine's handle on exec-server.
//!
//! The engine listens, exec-server connects. What comes back is bounded in size and never trusted: a frame that does
//! not parse, is too long, or answers a request that nobody made ends the connection, and every open request with it.

mod link;
mod listener;

use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::exec::{ExecBody, ExecOp, ExecRequest};
use cadre_protocol::ids::Epoch;
use tokio::sync::{oneshot, watch};

use crate::frame::{self, FrameError};
use link::Shared;
pub use listener::ExecListener;

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExecLost {
    /// Nobody is connected and greeted. Nothing was sent: it may be tried again.
    #[error("the sandbox is not connected")]
    NotConnected,
    /// The request does not fit a frame. Nothing was sent.
    #[error("the request is longer than a frame may be")]
    TooLarge,
    /// The connection ended before the answer came: the request may or may not have had its effect.
    #[error("the sandbox was lost before it answered; the outcome is unknown")]
    OutcomeUnknown,
}

impl ExecLost {
    /// Whether the request may have had an effect.
    #[must_use]
    pub fn may_have_happened(self) -> bool {
        self == Self::OutcomeUnknown
    }
}

/// Whether exec-server can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecState {
    /// Nobody is connected, or the greeting is not finished.
    Absent,
    /// Connected and greeted under the current epoch.
    Ready {
        /// Identity of the workspace. Untrusted text of at most 64 bytes.
        workspace_id: String,
    },
}

/// Sends requests to exec-server. Clones share the connection; requests may run at the same time.
///
/// The socket is closed when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct ExecClient {
    shared: Arc<Shared>,
    state: watch::Receiver<ExecState>,
    epoch: Arc<watch::Sender<Option<Epoch>>>,
}

impl ExecClient {
    /// Sets the engine's epoch. Nothing is sent before the first; a later one greets a live connection anew, which ends
    /// the commands of the older epoch.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.shared.absent_and(|| self.epoch.send_replace(Some(epoch)));
    }

    /// Waits, without bound, until exec-server is connected and greeted. Gives the workspace's identity.
    pub async fn ready(&self) -> String {
        let mut state = self.state.clone();
        loop {
            if let ExecState::Ready { workspace_id } = &*state.borrow_and_update() {
                return workspace_id.clone();
            }
            if state.changed().await.is_err() {
                // The listener's task holds the sender and ends only after the last client: nothing can come any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Like [`Self::ready`], for at most `timeout`.
    ///
    /// # Errors
    /// `NotConnected` when exec-server did not come in time.
    pub async fn wait_connected(&self, timeout: Duration) -> Result<String, ExecLost> {
        tokio::time::timeout(timeout, self.ready()).await.map_err(|_| ExecLost::NotConnected)
    }

    /// The state now, and its changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<ExecState> {
        self.state.clone()
    }

    /// How many connections ended so far, for whatever reason.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.shared.losses()
    }

    /// Sends a request and waits for its answer. Waits as long as the request takes: commands carry their own time-out.
    ///
    /// # Errors
    /// When nothing was sent, or the connection ended before the answer.
    pub async fn request(&self, op: ExecOp) -> Result<ExecBody, ExecLost> {
        self.begin(op)?.answer().await
    }

    /// Sends a request and gives its number, which a `Kill` can name, along with the answer to wait for.
    ///
    /// # Errors
    /// When nothing was sent.
    pub fn begin(&self, op: ExecOp) -> Result<InFlight, ExecLost> {
        let id = self.shared.next_id();
        let content = frame::encode(&ExecRequest { id, op }).map_err(|error| match error {
            FrameError::TooLarge | FrameError::Json(_) => ExecLost::TooLarge,
        })?;
        Ok(InFlight { id, answer: self.shared.send(id, content)? })
    }
}

/// A request that was sent. Dropping it forgets the answer, and stops nothing.
#[derive(Debug)]
pub struct InFlight {
    id: u64,
    answer: oneshot::Receiver<ExecBody>,
}

impl InFlight {
    /// The request's number, for [`ExecOp::Kill`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// `OutcomeUnknown` when the connection ended before it.
    pub async fn answer(self) -> Result<ExecBody, ExecLost> {
        self.answer.await.map_err(|_| ExecLost::OutcomeUnknown)
    }
}
