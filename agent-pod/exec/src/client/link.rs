//! One connection of exec-server, and the requests that are open on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cadre_protocol::exec::{ExecBody, ExecOp, ExecRequest, ExecResponse, VERSION};
use cadre_protocol::ids::Epoch;
use cadre_protocol::tool::WorkspaceEffect;
use futures::{SinkExt, StreamExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::bytes::Bytes;
use tokio_util::codec::{FramedRead, FramedWrite};

use super::{ExecLost, ExecState};
use crate::frame::{self, FrameError};

/// Longest workspace identity that is believed, in bytes.
const MAX_WORKSPACE_ID: usize = 64;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("it was closed")]
    Closed,
    #[error("it broke: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it answered request {0}, which is not open")]
    UnknownRequest(u64),
    #[error("it refused the greeting: {0}")]
    Refused(String),
}

/// What clients and the connection's task share.
#[derive(Debug)]
pub(super) struct Shared {
    next: AtomicU64,
    losses: AtomicU64,
    state: watch::Sender<ExecState>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Present while connected, greeted or not.
    outgoing: Option<mpsc::UnboundedSender<Bytes>>,
    waiting: HashMap<u64, oneshot::Sender<ExecBody>>,
}

impl Shared {
    pub(super) fn new(state: watch::Sender<ExecState>) -> Self {
        Self { next: AtomicU64::new(1), losses: AtomicU64::new(0), state, open: Mutex::default() }
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Makes the sandbox absent and does `then` in one step, as a greeting that ends at the same time sees it.
    pub(super) fn absent_and<T>(&self, then: impl FnOnce() -> T) -> T {
        let _open = self.open();
        self.state.send_replace(ExecState::Absent);
        then()
    }

    /// Hands a request over, if a greeted connection is there.
    pub(super) fn send(&self, id: u64, content: Bytes) -> Result<oneshot::Receiver<ExecBody>, ExecLost> {
        let mut open = self.open();
        if *self.state.borrow() == ExecState::Absent {
            return Err(ExecLost::NotConnected);
        }
        open.send(id, content)
    }

    /// Ends all open requests: their senders are dropped.
    pub(super) fn disconnect(&self) {
        let mut open = self.open();
        *open = Open::default();
        self.losses.fetch_add(1, Ordering::Relaxed);
        self.state.send_replace(ExecState::Absent);
    }

    fn connect(&self) -> mpsc::UnboundedReceiver<Bytes> {
        // Unbounded in number only: every caller waits for its answer, and the engine runs few calls at a time.
        let (outgoing, receiver) = mpsc::unbounded_channel();
        *self.open() = Open { outgoing: Some(outgoing), waiting: HashMap::new() };
        receiver
    }

    fn greet(&self, epoch: Epoch) -> Result<oneshot::Receiver<ExecBody>, Ended> {
        let id = self.next_id();
        let content = frame::encode(&ExecRequest { id, op: ExecOp::Hello { version: VERSION, epoch: epoch.0 } })?;
        self.open().send(id, content).map_err(|_| Ended::Closed)
    }

    fn resolve(&self, response: ExecResponse) -> Result<(), Ended> {
        let ExecResponse { id, body } = response;
        let waiting = self.open().waiting.remove(&id).ok_or(Ended::UnknownRequest(id))?;
        // Nobody may be waiting any more; that is the caller's choice.
        let _ = waiting.send(bounded(body));
        Ok(())
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn send(&mut self, id: u64, content: Bytes) -> Result<oneshot::Receiver<ExecBody>, ExecLost> {
        let outgoing = self.outgoing.as_ref().ok_or(ExecLost::NotConnected)?;
        outgoing.send(content).map_err(|_| ExecLost::NotConnected)?;
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(id, sender);
        Ok(receiver)
    }
}

/// Speaks with one connection until it ends. Says why it did.
pub(super) async fn converse(stream: UnixStream, shared: Arc<Shared>, epoch: watch::Receiver<Option<Epoch>>) -> Ended {
    let (reader, writer) = stream.into_split();
    let mut incoming = FramedRead::new(reader, frame::codec());
    let mut outgoing = FramedWrite::new(writer, frame::codec());
    let mut requests = shared.connect();
    let write = async {
        while let Some(content) = requests.recv().await {
            outgoing.send(content).await?;
        }
        Ok::<(), Ended>(())
    };
    let read = async {
        while let Some(content) = incoming.next().await {
            let content = content.map_err(too_large)?;
            shared.resolve(frame::decode(&content)?)?;
        }
        Err::<(), Ended>(Ended::Closed)
    };
    tokio::select! {
        ended = write => ended.err().unwrap_or(Ended::Closed),
        ended = read => ended.err().unwrap_or(Ended::Closed),
        ended = greetings(&shared, epoch) => ended,
    }
}

/// Greets whenever there is a new epoch, and publishes the answer. Ends only when the connection must.
async fn greetings(shared: &Shared, mut epoch: watch::Receiver<Option<Epoch>>) -> Ended {
    loop {
        let current = *epoch.borrow_and_update();
        if let Some(current) = current
            && let Err(ended) = greeting(shared, current, &epoch).await
        {
            return ended;
        }
        if epoch.changed().await.is_err() {
            return Ended::Closed;
        }
    }
}

async fn greeting(shared: &Shared, current: Epoch, epoch: &watch::Receiver<Option<Epoch>>) -> Result<(), Ended> {
    let body = shared.greet(current)?.await.map_err(|_| Ended::Closed)?;
    let workspace_id = match body {
        ExecBody::Ready { workspace_id } if workspace_id.len() <= MAX_WORKSPACE_ID => workspace_id,
        ExecBody::Failed { message, .. } => return Err(Ended::Refused(message.chars().take(200).collect())),
        _ => return Err(Ended::Refused("it gave another answer than Ready".to_owned())),
    };
    let _open = shared.open();
    // A newer epoch that came meanwhile needs a greeting of its own first.
    if *epoch.borrow() == Some(current) {
        shared.state.send_replace(ExecState::Ready { workspace_id });
    }
    Ok(())
}

fn too_large(error: std::io::Error) -> Ended {
    if error.kind() == std::io::ErrorKind::InvalidData { FrameError::TooLarge.into() } else { Ended::Io(error) }
}

/// Cuts what the protocol bounds by number rather than by the frame.
fn bounded(mut body: ExecBody) -> ExecBody {
    if let ExecBody::Exited { effect, .. } | ExecBody::Done { effect } = &mut body {
        for paths in [&mut effect.files, &mut effect.removed] {
            effect.truncated |= paths.len() > WorkspaceEffect::MAX_FILES;
            paths.truncate(WorkspaceEffect::MAX_FILES);
        }
    }
    body
}
