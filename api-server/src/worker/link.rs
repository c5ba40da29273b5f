//! One connection: hello, then frames both ways until either side goes.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{Message, Utf8Bytes, WebSocket};
use cadre_protocol::ids::RunId;
use cadre_protocol::journal::Batch;
use cadre_protocol::worker::{
    HEARTBEAT_SECONDS, HeldRun, Hello, MAX_FRAME_BYTES, MISSED_HEARTBEATS, ServerFrame, VERSION, WorkerFrame,
};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::binding::{Binding, Unbound};
use super::calls::{self, Call, Calls, TooLarge, Tool};
use super::{WorkerPort, appender};
use crate::auth::pod::Caller;
use crate::domain::lease::Arrival;
use crate::domain::{Service, Writer};

/// A worker that was not heard for this long is lost.
pub const SILENCE: Duration = Duration::from_secs(HEARTBEAT_SECONDS * MISSED_HEARTBEATS);
/// Time for the first frame.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// Bytes that most frames have room in.
const FRAME_BYTES: usize = 2_048;
/// Frames that may wait for the socket.
const OUT_FRAMES: usize = 256;

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// It broke, or was closed: the worker may come back.
    Broken,
    /// The worker will not come back.
    Gone,
    /// The server stops.
    Stopping,
}

/// Serves a connection until it ends.
pub async fn serve(port: WorkerPort, caller: Caller, socket: WebSocket) {
    let (mut sink, mut stream) = socket.split();
    let (hello, binding) = match greet(&port, &caller, &mut stream).await {
        Ok(greeted) => greeted,
        Err(Some(reason)) => {
            tracing::warn!(reason, "worker rejected");
            let _ = send(&mut sink, &ServerFrame::Rejected { reason }).await;
            return;
        }
        Err(None) => return,
    };
    let Binding { worker_id, serves, component } = binding;
    if send(&mut sink, &ServerFrame::Welcome { worker_id: worker_id.clone() }).await.is_err() {
        return;
    }
    let writer = Writer { worker_id, registration: hello.registration };
    let (out, frames) = mpsc::channel(OUT_FRAMES);
    let (control, control_frames) = mpsc::unbounded_channel();
    let connection = CancellationToken::new();
    let _ends_with_us = connection.clone().drop_guard();
    port.service.spawn(write(port.service.clone(), sink, frames, control_frames, connection.clone()));

    let close = connection.clone();
    let arrival = Arrival { writer: writer.clone(), serves, component, held: hello.runs, control, close };
    let link = port.service.connected(arrival).await;
    let calls = Calls::new(port.clone(), writer.clone(), out.clone(), connection.clone());
    let mut reader = Reader { port: &port, writer: &writer, out, calls, appenders: HashMap::new(), draining: false };
    let end = reader.read(&mut stream, &connection).await;
    connection.cancel();
    port.service.disconnected(writer, link, end == End::Gone);
}

/// The first frame and who that makes it. `Err(None)`: nobody is left to be told.
async fn greet(
    port: &WorkerPort,
    caller: &Caller,
    stream: &mut SplitStream<WebSocket>,
) -> Result<(Hello, Binding), Option<String>> {
    let first = timeout(GREETING_TIME, stream.next()).await.map_err(|_| None)?;
    let Some(Ok(Message::Text(text))) = first else { return Err(None) };
    let Ok(WorkerFrame::Hello(hello)) = serde_json::from_str::<WorkerFrame>(&text) else {
        return Err(Some("the first frame must be Hello".to_owned()));
    };
    if hello.version != VERSION {
        return Err(Some(format!("this server speaks version {VERSION}, not {}", hello.version)));
    }
    if hello.registration.is_empty() || hello.registration.len() > 128 {
        return Err(Some("the registration must have 1 to 128 bytes".to_owned()));
    }
    match port.bindings.bind(caller, hello.sandbox.as_ref()).await {
        Ok(binding) => Ok((hello, binding)),
        Err(Unbound::Never(reason)) => Err(Some(reason.to_owned())),
        Err(Unbound::NotYet) => Err(None),
    }
}

struct Reader<'a> {
    port: &'a WorkerPort,
    writer: &'a Writer,
    out: mpsc::Sender<ServerFrame>,
    calls: Calls,
    appenders: HashMap<RunId, mpsc::Sender<Batch>>,
    draining: bool,
}

impl Reader<'_> {
    async fn read(&mut self, stream: &mut SplitStream<WebSocket>, connection: &CancellationToken) -> End {
        loop {
            let message = tokio::select! {
                message = timeout(SILENCE, stream.next()) => message,
                () = connection.cancelled() => return self.broken(),
                () = self.port.service.stopping().cancelled() => return End::Stopping,
            };
            let text = match message {
                // Three heartbeats missed.
                Err(_) => return End::Gone,
                Ok(Some(Ok(Message::Text(text)))) => text,
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
                Ok(None | Some(Ok(Message::Close(_) | Message::Binary(_)) | Err(_))) => return self.broken(),
            };
            match serde_json::from_str::<WorkerFrame>(&text) {
                Ok(frame) => self.take(frame).await,
                Err(error) => {
                    tracing::warn!(worker_id = %self.writer.worker_id, line = error.line(), "worker sent no frame");
                    return End::Broken;
                }
            }
        }
    }

    fn broken(&self) -> End {
        if self.draining { End::Gone } else { End::Broken }
    }

    async fn take(&mut self, frame: WorkerFrame) {
        match frame {
            WorkerFrame::Hello(_) => {}
            WorkerFrame::Append(batch) => self.append(batch).await,
            WorkerFrame::ModelCall { call, run_id, epoch, request } => {
                self.calls.begin(call, HeldRun { run_id, epoch }, Call::Model(request)).await;
            }
            WorkerFrame::ToolCall { call, run_id, epoch, tool_call_id, tool, arguments } => {
                let tool = Tool { call_id: tool_call_id, name: tool, arguments };
                self.calls.begin(call, HeldRun { run_id, epoch }, Call::Tool(tool)).await;
            }
            WorkerFrame::GetBlob { call, run_id, epoch, digest, offset } => {
                self.calls.begin(call, HeldRun { run_id, epoch }, Call::Blob(digest, offset)).await;
            }
            WorkerFrame::CancelCall { call } => self.calls.cancel(call),
            WorkerFrame::Isolation { isolated, detail } => self.isolation(isolated, detail),
            WorkerFrame::Heartbeat {} => {
                let _ = self.out.send(ServerFrame::Heartbeat {}).await;
            }
            WorkerFrame::Draining {} => {
                self.draining = true;
                self.port.service.drain(&self.writer.worker_id);
            }
        }
    }

    /// Hands a batch to its run's appender. Waits when that one has fallen behind.
    async fn append(&mut self, batch: Batch) {
        self.appenders.retain(|_, appender| !appender.is_closed());
        let mut batch = batch;
        loop {
            let appender = self.appenders.entry(batch.run_id.clone()).or_insert_with(|| {
                let (sender, batches) = mpsc::channel(appender::QUEUED_BATCHES);
                let service = self.port.service.clone();
                let running = appender::run(service, self.writer.clone(), batches, self.out.clone());
                self.port.service.spawn(running);
                sender
            });
            match appender.send(batch).await {
                Ok(()) => return,
                // It has just ended with its run: the next one answers.
                Err(returned) => {
                    batch = returned.0;
                    self.appenders.remove(&batch.run_id);
                }
            }
        }
    }

    fn isolation(&self, isolated: bool, detail: String) {
        let detail = detail.chars().filter(|c| !c.is_control()).take(500).collect();
        self.port.service.report_isolation(self.writer, isolated, detail);
    }
}

/// Writes frames until the connection ends; several at a time where several wait.
async fn write(
    service: Service,
    mut sink: SplitSink<WebSocket, Message>,
    mut frames: mpsc::Receiver<ServerFrame>,
    mut control: mpsc::UnboundedReceiver<ServerFrame>,
    connection: CancellationToken,
) {
    loop {
        let frame = tokio::select! {
            biased;
            () = connection.cancelled() => break,
            Some(frame) = control.recv() => frame,
            Some(frame) = frames.recv() => frame,
            else => break,
        };
        let written = async {
            feed(&service, &mut sink, frame).await?;
            while let Ok(frame) = control.try_recv() {
                feed(&service, &mut sink, frame).await?;
            }
            while let Ok(frame) = frames.try_recv() {
                feed(&service, &mut sink, frame).await?;
            }
            sink.flush().await
        };
        if !matches!(timeout(SILENCE, written).await, Ok(Ok(()))) {
            break;
        }
    }
    connection.cancel();
    let _ = timeout(Duration::from_secs(1), sink.close()).await;
}

/// Sends a frame, or what becomes of one that no worker would take: the connection would break of it, and again of the next
/// attempt.
async fn feed(
    service: &Service,
    sink: &mut SplitSink<WebSocket, Message>,
    frame: ServerFrame,
) -> Result<(), axum::Error> {
    let text = encode(&frame)?;
    if text.len() <= MAX_FRAME_BYTES {
        return sink.feed(Message::Text(text)).await;
    }
    match calls::too_large(frame) {
        TooLarge::Instead(frame) => sink.feed(Message::Text(encode(&frame)?)).await,
        TooLarge::Nothing => Ok(()),
        TooLarge::Refuse(run_id) => {
            let service_then = service.clone();
            service.spawn(async move {
                service_then.refuse(&run_id, "what the run has to be told is too large".to_owned()).await;
            });
            Ok(())
        }
    }
}

fn encode(frame: &ServerFrame) -> Result<Utf8Bytes, axum::Error> {
    let mut text = Vec::with_capacity(FRAME_BYTES);
    serde_json::to_writer(&mut text, frame).map_err(axum::Error::new)?;
    Utf8Bytes::try_from(Bytes::from(text)).map_err(axum::Error::new)
}

async fn send(sink: &mut SplitSink<WebSocket, Message>, frame: &ServerFrame) -> Result<(), axum::Error> {
    sink.send(Message::Text(encode(frame)?)).await
}
