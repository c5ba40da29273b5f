//! Serving one connection: several requests at once, answered as they finish.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cadre_protocol::exec::{ExecBody, ExecErrorCode, ExecOp, ExecRequest, ExecResponse, VERSION};
use cadre_protocol::tool::WorkspaceEffect;
use futures::{SinkExt, StreamExt};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::bytes::Bytes;
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::answer;
use crate::frame;
use crate::process::{Command, Processes, Shell, Site};
use crate::room::Room;
use crate::workspace::{Failure, Workspace};

/// Most requests at once, over all connections: a command of a lost connection counts until it ends.
const MAX_REQUESTS: usize = 64;
/// How long a new engine waits for the end of what an older one asked for.
const QUIET: Duration = Duration::from_secs(30);
/// Answers that wait for the engine to read them.
const WAITING_ANSWERS: usize = 16;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Session {
    processes: Arc<Processes>,
    shell: Shell,
    workspace: Arc<Workspace>,
    room: Arc<Room>,
    slots: Arc<Semaphore>,
    epoch: Mutex<Option<u64>>,
}

/// What belongs to one connection.
struct Connection {
    session: Arc<Session>,
    answers: mpsc::Sender<Bytes>,
    /// Running commands by request.
    commands: Arc<Mutex<HashMap<u64, CancellationToken>>>,
    greeted: bool,
}

impl Session {
    pub(super) fn new(processes: Arc<Processes>, shell: Shell, workspace: Workspace, room: Arc<Room>) -> Self {
        let slots = Arc::new(Semaphore::new(MAX_REQUESTS));
        Self { processes, shell, workspace: Arc::new(workspace), room, slots, epoch: Mutex::new(None) }
    }

    /// Serves until the connection ends, or says something that is no request.
    pub(super) async fn serve(self: Arc<Self>, stream: UnixStream) {
        let (reader, writer) = stream.into_split();
        let mut requests = FramedRead::new(reader, frame::codec());
        let mut writer = FramedWrite::new(writer, frame::codec());
        let (answers, mut outgoing) = mpsc::channel(WAITING_ANSWERS);
        let mut connection = Connection { session: self, answers, commands: Arc::default(), greeted: false };
        let write = async {
            while let Some(content) = outgoing.recv().await {
                if writer.send(content).await.is_err() {
                    return;
                }
            }
        };
        let read = async {
            while let Some(Ok(content)) = requests.next().await {
                match frame::decode::<ExecRequest>(&content) {
                    Ok(request) => connection.take(request).await,
                    Err(error) => {
                        warn!(%error, "the engine sent no valid request");
                        return;
                    }
                }
            }
        };
        tokio::select! {
            () = write => {},
            () = read => {},
        }
    }

    /// Ends what an engine of another epoch started, before this one is answered.
    async fn greet(&self, version: u32, epoch: u64) -> ExecBody {
        if version != VERSION {
            let message = format!("exec-server speaks version {VERSION}, not {version}");
            return ExecBody::Failed { code: ExecErrorCode::Io, message };
        }
        let old = *lock(&self.epoch);
        if old.is_some_and(|old| old != epoch) {
            self.processes.stop_all().await;
            // Operations on files cannot be stopped, so the last of them is waited for.
            let all = u32::try_from(MAX_REQUESTS).unwrap_or(u32::MAX);
            if !matches!(timeout(QUIET, self.slots.acquire_many(all)).await, Ok(Ok(_))) {
                return refuse("requests of an older engine are still running");
            }
        }
        *lock(&self.epoch) = Some(epoch);
        ExecBody::Ready { workspace_id: self.workspace.id().to_owned() }
    }

    async fn carry_out(&self, op: ExecOp, kill: CancellationToken) -> ExecBody {
        if let ExecOp::Run { command, cwd, timeout_ms, max_output_bytes } = op {
            let timeout = Duration::from_millis(timeout_ms);
            let command = Command { text: command, cwd, timeout, max_output: max_output_bytes };
            let site = Site { processes: &self.processes, shell: &self.shell, room: &self.room };
            let answer = command.answer(site, &self.workspace, kill).await;
            return answer.unwrap_or_else(Failure::into_body);
        }
        let (workspace, room) = (Arc::clone(&self.workspace), Arc::clone(&self.room));
        let answer = move || match room.refuses(&op) {
            Some(message) => ExecBody::Failed { code: ExecErrorCode::TooLarge, message },
            None => workspace.answer(op),
        };
        tokio::task::spawn_blocking(answer).await.unwrap_or_else(|_| ExecBody::Failed {
            code: ExecErrorCode::Io,
            message: "the operation broke off".to_owned(),
        })
    }
}

impl Connection {
    async fn take(&mut self, ExecRequest { id, op }: ExecRequest) {
        let body = match op {
            ExecOp::Hello { version, epoch } => {
                let body = self.session.greet(version, epoch).await;
                self.greeted = matches!(body, ExecBody::Ready { .. });
                body
            }
            _ if !self.greeted => refuse("say hello first"),
            ExecOp::Kill { target } => {
                // One that is not running has its answer, or gets it any moment.
                if let Some(kill) = lock(&self.commands).get(&target) {
                    kill.cancel();
                }
                let workspace_id = self.session.workspace.id().to_owned();
                ExecBody::Done { effect: WorkspaceEffect { workspace_id, ..WorkspaceEffect::default() } }
            }
            op => match Arc::clone(&self.session.slots).try_acquire_owned() {
                Err(_) => refuse("too many requests at once"),
                Ok(slot) => {
                    self.start(id, op, slot);
                    return;
                }
            },
        };
        answer(&self.answers, id, body).await;
    }

    fn start(&self, id: u64, op: ExecOp, slot: tokio::sync::OwnedSemaphorePermit) {
        let (session, answers, commands) =
            (Arc::clone(&self.session), self.answers.clone(), Arc::clone(&self.commands));
        let kill = CancellationToken::new();
        lock(&commands).insert(id, kill.clone());
        tokio::spawn(async move {
            let body = session.carry_out(op, kill).await;
            lock(&commands).remove(&id);
            drop(slot);
            answer(&answers, id, body).await;
        });
    }
}

fn refuse(message: &str) -> ExecBody {
    ExecBody::Failed { code: ExecErrorCode::TooLarge, message: message.to_owned() }
}

async fn answer(answers: &mpsc::Sender<Bytes>, id: u64, body: ExecBody) {
    if let Some(content) = answer::frame(ExecResponse { id, body }) {
        // It fails when the connection has ended: the engine counts the request as lost.
        let _ = answers.send(content).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
