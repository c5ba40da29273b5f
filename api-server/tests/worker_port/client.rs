//! A worker under a test's control.

use cadre_protocol::event::RunEvent;
use cadre_protocol::ids::{Epoch, RunId, WorkerId};
use cadre_protocol::journal::{Batch, Entry};
use cadre_protocol::worker::{
    Assignment, HeldRun, Hello, LINK_PATH, SandboxIdentity, ServerFrame, VERSION, WorkerFrame,
};
use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::{PATIENCE, Rig, completed, event, started};

/// A worker under a test's control.
pub struct Worker {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub worker_id: WorkerId,
    inbox: Vec<ServerFrame>,
}

impl Worker {
    pub async fn connect(rig: &Rig, name: &str, registration: &str, runs: Vec<HeldRun>) -> Result<Self, String> {
        let mut request = format!("ws://{}{LINK_PATH}", rig.address).into_client_request().unwrap();
        let bearer = format!("Bearer {}", rig.token).parse().unwrap();
        request.headers_mut().insert(http::header::AUTHORIZATION, bearer);
        let (socket, _) = tokio_tungstenite::connect_async(request).await.map_err(|error| error.to_string())?;
        let sandbox = SandboxIdentity { namespace: "default".to_owned(), name: name.to_owned() };
        let hello = Hello { version: VERSION, registration: registration.to_owned(), sandbox: Some(sandbox), runs };
        let mut worker = Self { socket, worker_id: WorkerId::new("none").unwrap(), inbox: Vec::new() };
        worker.send(WorkerFrame::Hello(hello)).await;
        match worker.next().await.ok_or("closed")? {
            ServerFrame::Welcome { worker_id } => worker.worker_id = worker_id,
            ServerFrame::Rejected { reason } => return Err(reason),
            other => panic!("{other:?}"),
        }
        Ok(worker)
    }

    pub async fn send(&mut self, frame: WorkerFrame) {
        let text = serde_json::to_string(&frame).unwrap();
        self.socket.send(Message::Text(text.into())).await.unwrap();
    }

    /// The next frame that is no heartbeat; none when the connection has ended.
    pub async fn next(&mut self) -> Option<ServerFrame> {
        loop {
            match self.any().await {
                Some(ServerFrame::Heartbeat {}) => {}
                other => return other,
            }
        }
    }

    async fn any(&mut self) -> Option<ServerFrame> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("a frame comes in time");
            match message {
                Some(Ok(Message::Text(text))) => return Some(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// Waits until the server has taken all that was sent: frames are taken in order, and a heartbeat is answered at once.
    pub async fn heard(&mut self) {
        self.send(WorkerFrame::Heartbeat {}).await;
        loop {
            match self.any().await.expect("the connection stays") {
                ServerFrame::Heartbeat {} => return,
                frame => self.inbox.push(frame),
            }
        }
    }

    /// The first frame that fits; others wait.
    pub async fn expect<T>(&mut self, what: &str, mut fits: impl FnMut(&ServerFrame) -> Option<T>) -> T {
        if let Some(at) = self.inbox.iter().position(|frame| fits(frame).is_some()) {
            return fits(&self.inbox.remove(at)).unwrap();
        }
        loop {
            let Some(frame) = self.next().await else { panic!("the connection ended before {what}") };
            match fits(&frame) {
                Some(found) => return found,
                None => self.inbox.push(frame),
            }
        }
    }

    pub async fn assignment(&mut self) -> Assignment {
        self.expect("an assignment", |frame| match frame {
            ServerFrame::Assign(assignment) => Some((**assignment).clone()),
            _ => None,
        })
        .await
    }

    /// Whether nothing has come that fits, after a round trip.
    pub async fn has_none(&mut self, mut fits: impl FnMut(&ServerFrame) -> bool) -> bool {
        let probe = RunId::new("probe").unwrap();
        self.append(&probe, Epoch(1), 0, Vec::new()).await;
        self.expect("the probe's answer", |frame| match frame {
            ServerFrame::Fenced { run_id, .. } if *run_id == probe => Some(()),
            _ => None,
        })
        .await;
        !self.inbox.iter().any(&mut fits)
    }

    pub async fn append(&mut self, run_id: &RunId, epoch: Epoch, first_index: u64, entries: Vec<Entry>) {
        let batch = Batch { run_id: run_id.clone(), epoch, first_index, entries };
        self.send(WorkerFrame::Append(batch)).await;
    }

    /// Waits for the acknowledgement up to a number.
    pub async fn acked(&mut self, run: &RunId, next: u64) {
        self.expect("an acknowledgement", |frame| match frame {
            ServerFrame::Ack { run_id, next_index, .. } if run_id == run && *next_index >= next => Some(()),
            _ => None,
        })
        .await;
    }

    pub async fn fenced(&mut self, run: &RunId) {
        self.expect("a fence", |frame| match frame {
            ServerFrame::Fenced { run_id, .. } if run_id == run => Some(()),
            _ => None,
        })
        .await;
    }

    /// Does the run: starts, says something, ends.
    pub async fn finish(&mut self, assignment: &Assignment) {
        let Assignment { run_id, epoch, progress, .. } = assignment;
        let entries = vec![started(), event(RunEvent::text("hi")), completed("hi")];
        self.append(run_id, *epoch, progress.next_index, entries).await;
        self.acked(run_id, progress.next_index + 3).await;
    }

    /// Ends the connection without a farewell.
    pub async fn vanish(self) {
        let stream = self.socket.into_inner();
        drop(stream);
    }
}
