//! Keeping a connection: dial, greet, pass frames both ways, and again for ever.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use cadre_protocol::worker::{
    HEARTBEAT_SECONDS, Hello, MAX_FRAME_BYTES, MISSED_HEARTBEATS, SandboxIdentity, ServerFrame, VERSION, WorkerFrame,
};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::dial::{self, DialError, Socket};
use super::hub::Hub;
use super::state::News;
use crate::config::{Endpoint, TokenSource};

/// How long a connection may be silent in either direction: [`Identity::patience`] of a worker.
pub const PATIENCE: Duration = Duration::from_secs(HEARTBEAT_SECONDS * MISSED_HEARTBEATS);
/// Time for the last frames of a process that ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Who dials where.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The server.
    pub api: Endpoint,
    /// The token.
    pub token: TokenSource,
    /// Random for each process.
    pub registration: String,
    /// The pod's Sandbox.
    pub sandbox: Option<SandboxIdentity>,
    /// A connection on which nothing was heard for this long is given up.
    pub patience: Duration,
}

/// How the link ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEnd {
    /// As asked.
    Closed,
    /// The server does not want this worker.
    Rejected(String),
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the connection broke")]
    Transport(#[from] tungstenite::Error),
    #[error("the server closed the connection")]
    Closed,
    #[error("the server was silent for too long")]
    Silent,
    #[error("the server sent what is no frame")]
    Frame(#[source] serde_json::Error),
    #[error("the server rejects this worker")]
    Rejected(String),
}

/// Keeps a connection until it is told to close, or the server rejects the worker.
pub async fn keep(hub: &Hub, identity: &Identity, close: &CancellationToken) -> LinkEnd {
    let mut pause = Pauses::of_a_new_pod();
    loop {
        let dialled = tokio::select! {
            () = close.cancelled() => return LinkEnd::Closed,
            dialled = dial::dial(&identity.api, &identity.token) => dialled,
        };
        let delay = match dialled {
            Ok(socket) => match serve(hub, identity, socket, close, &mut pause).await {
                Ok(()) => return LinkEnd::Closed,
                Err(Broken::Rejected(reason)) => return LinkEnd::Rejected(reason),
                Err(broken) => {
                    warn!(error = %chain(&broken), "the link to the API server broke");
                    hub.with(super::state::State::disconnected);
                    pause.short()
                }
            },
            Err(DialError::Unauthorized(status)) => {
                warn!(status, "the API server refuses the token");
                pause.long()
            }
            Err(error) if pause.early > 0 => {
                debug!(error = %chain(&error), "could not reach the API server yet");
                pause.short()
            }
            Err(error) => {
                warn!(error = %chain(&error), "could not reach the API server");
                pause.short()
            }
        };
        tokio::select! {
            () = close.cancelled() => return LinkEnd::Closed,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Pauses between the first dials of a process: a new pod's network policy refuses them for some tenths of a second.
const EARLY_PAUSE: Duration = Duration::from_millis(40);
/// How many of these: about a second.
const EARLY_PAUSES: u32 = 25;

/// Growing pauses with jitter, so that workers do not come back all at once.
struct Pauses {
    early: u32,
    short: backon::ExponentialBackoff,
    long: backon::ExponentialBackoff,
}

impl Pauses {
    fn of_a_new_pod() -> Self {
        Self { early: EARLY_PAUSES, ..Self::new() }
    }

    fn new() -> Self {
        let from = |min, max| {
            ExponentialBuilder::new().with_min_delay(min).with_max_delay(max).with_jitter().without_max_times().build()
        };
        Self {
            early: 0,
            short: from(Duration::from_millis(50), Duration::from_secs(3)),
            long: from(Duration::from_secs(1), Duration::from_secs(30)),
        }
    }

    fn short(&mut self) -> Duration {
        if let Some(left) = self.early.checked_sub(1) {
            self.early = left;
            return EARLY_PAUSE;
        }
        self.short.next().unwrap_or(Duration::from_secs(3))
    }

    fn long(&mut self) -> Duration {
        self.long.next().unwrap_or(Duration::from_secs(30))
    }
}

async fn serve(
    hub: &Hub,
    identity: &Identity,
    socket: Socket,
    close: &CancellationToken,
    pause: &mut Pauses,
) -> Result<(), Broken> {
    let (mut sink, mut stream) = socket.split();
    let hello = WorkerFrame::Hello(Hello {
        version: VERSION,
        registration: identity.registration.clone(),
        sandbox: identity.sandbox.clone(),
        runs: hub.with(|state| state.held()),
    });
    timeout(identity.patience, sink.send(dial::text(encode(&hello)?))).await.map_err(|_| Broken::Silent)??;
    match receive(&mut stream, identity.patience).await? {
        ServerFrame::Welcome { worker_id } => info!(%worker_id, "linked to the API server"),
        ServerFrame::Rejected { reason } => return Err(Broken::Rejected(reason)),
        _ => return Err(Broken::Closed),
    }
    *pause = Pauses::new();
    tokio::select! {
        written = write(hub, &mut sink, close, identity.patience) => written,
        broken = read(hub, &mut stream, identity.patience) => Err(broken),
    }
}

/// Sends what is ready, all in one flush, and heartbeats. Ends well when told to close.
async fn write(
    hub: &Hub,
    sink: &mut SplitSink<Socket, Message>,
    close: &CancellationToken,
    patience: Duration,
) -> Result<(), Broken> {
    let mut beat = tokio::time::interval(Duration::from_secs(HEARTBEAT_SECONDS));
    loop {
        timeout(patience, flush(hub, sink)).await.map_err(|_| Broken::Silent)??;
        tokio::select! {
            biased;
            _ = beat.tick() => sink.feed(dial::text(encode(&WorkerFrame::Heartbeat {})?)).await?,
            () = hub.rung() => {}
            () = close.cancelled() => {
                let farewell = async {
                    flush(hub, sink).await?;
                    sink.close().await.map_err(Broken::from)
                };
                return timeout(LAST_WORDS, farewell).await.unwrap_or(Ok(()));
            }
        }
    }
}

async fn flush(hub: &Hub, sink: &mut SplitSink<Socket, Message>) -> Result<(), Broken> {
    loop {
        let frames = hub.with(super::state::State::ready);
        if frames.is_empty() {
            return Ok(sink.flush().await?);
        }
        for frame in frames {
            let text = encode(&frame)?;
            if text.len() > MAX_FRAME_BYTES {
                // May have something else ready.
                hub.with(|state| state.too_large(frame));
            } else {
                sink.feed(dial::text(text)).await?;
            }
        }
    }
}

async fn read(hub: &Hub, stream: &mut SplitStream<Socket>, patience: Duration) -> Broken {
    loop {
        let frame = match receive(stream, patience).await {
            Ok(frame) => frame,
            Err(broken) => return broken,
        };
        match hub.with(|state| state.receive(frame)) {
            Some(News::Rejected(reason)) => return Broken::Rejected(reason),
            Some(news) => hub.tell(news),
            None => {}
        }
    }
}

async fn receive(stream: &mut SplitStream<Socket>, patience: Duration) -> Result<ServerFrame, Broken> {
    loop {
        match timeout(patience, stream.next()).await.map_err(|_| Broken::Silent)? {
            Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).map_err(Broken::Frame),
            Some(Ok(Message::Close(_))) | None => return Err(Broken::Closed),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
}

fn encode(frame: &WorkerFrame) -> Result<String, Broken> {
    serde_json::to_string(frame).map_err(Broken::Frame)
}

#[cfg(test)]
mod tests {
    use cadre_protocol::ids::WorkerId;
    use tokio::net::UnixListener;
    use tokio_tungstenite::accept_async;

    use super::*;

    #[test]
    fn a_new_pod_dials_often_at_first_and_then_ever_more_seldom() {
        let mut pauses = Pauses::of_a_new_pod();
        let early: Vec<_> = (0..EARLY_PAUSES).map(|_| pauses.short()).collect();
        assert!(early.iter().all(|pause| *pause == EARLY_PAUSE));
        let later: Vec<_> = (0..12).map(|_| pauses.short()).collect();
        assert!(later[11] > later[0] && later[11] >= Duration::from_secs(3), "{later:?}");
        assert_ne!(Pauses::new().short(), EARLY_PAUSE);
    }

    #[tokio::test]
    async fn a_silent_server_is_dialled_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let identity = Identity {
            api: Endpoint::Unix(path),
            token: TokenSource::Text("secret".into()),
            registration: "r".into(),
            sandbox: None,
            patience: Duration::from_millis(50),
        };
        let (hub, _news) = Hub::new();
        let close = CancellationToken::new();
        let server = async {
            let welcome = ServerFrame::Welcome { worker_id: WorkerId::new("local/1").unwrap() };
            let mut silent = Vec::new();
            while silent.len() < 2 {
                let (stream, _) = listener.accept().await.unwrap();
                // On a busy machine its patience may end before the greeting.
                let Ok(mut socket) = accept_async(stream).await else { continue };
                if socket.send(dial::text(serde_json::to_string(&welcome).unwrap())).await.is_ok() {
                    silent.push(socket);
                }
            }
            close.cancel();
            silent
        };
        let (end, _silent) = tokio::join!(keep(&hub, &identity, &close), server);
        assert_eq!(end, LinkEnd::Closed);
    }
}
