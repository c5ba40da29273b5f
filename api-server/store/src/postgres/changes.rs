//! News between replicas: which runs another one has written to, and what it tells.
//!
//! Sent after the commit and not with it, because a commit that notifies holds a lock over its sync. News can thus be
//! lost with a replica or a connection; readers that heard nothing for a while look at the record.

use std::collections::BTreeSet;
use std::time::Duration;

use cadre_protocol::ids::{RunId, WorkerId};
use tokio::sync::{broadcast, mpsc};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

use crate::error::StoreError;
use crate::rows::Change;

/// News that may wait to be sent; more are dropped.
const OUTGOING: usize = 4_096;
/// News that a listener may be behind.
const INCOMING: usize = 4_096;
/// Pause between attempts to connect.
const RECONNECT: Duration = Duration::from_secs(1);
/// PostgreSQL takes less than 8,000 bytes.
const MAX_PAYLOAD_BYTES: usize = 7_000;
const LISTEN: &str = "listen cadre_runs";
const NOTIFY: &str = "select pg_notify('cadre_runs', $1)";

/// The way to the thread that sends and receives news. The thread ends with the last copy of it.
#[derive(Clone)]
pub struct Changes {
    outgoing: mpsc::Sender<String>,
    incoming: broadcast::Sender<Change>,
}

impl Changes {
    /// Starts the thread.
    pub fn start(config: Config) -> Result<Self, StoreError> {
        let unavailable = |error: std::io::Error| StoreError::Unavailable(error.to_string());
        let (outgoing, mut queue) = mpsc::channel(OUTGOING);
        let (incoming, _) = broadcast::channel(INCOMING);
        // The thread must not keep itself alive, but may well outlive every listener.
        let told = incoming.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unavailable)?;
        std::thread::Builder::new()
            .name("store-changes".into())
            .spawn(move || runtime.block_on(exchange(&config, &mut queue, &told)))
            .map_err(unavailable)?;
        Ok(Self { outgoing, incoming })
    }

    /// News from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.incoming.subscribe()
    }

    /// Tells the other replicas of a committed write to a run.
    pub fn wrote(&self, run_id: &str) {
        self.send(format!("r{run_id}"));
    }

    /// Tells the other replicas.
    pub fn tell(&self, change: &Change) {
        self.send(match change {
            Change::Run(run_id) => format!("r{run_id}"),
            Change::Waiting(run_id) => format!("w{run_id}"),
            Change::Cancel(run_id) => format!("c{run_id}"),
            Change::Status(run_id) => format!("s{run_id}"),
            Change::Worker(worker_id) => format!("k{worker_id}"),
            // Everybody knows by himself what he has missed.
            Change::Missed => return,
        });
    }

    fn send(&self, news: String) {
        // With a full queue there is no connection, and everybody looks at the record.
        let _ = self.outgoing.try_send(news);
    }
}

async fn exchange(config: &Config, queue: &mut mpsc::Receiver<String>, incoming: &broadcast::Sender<Change>) {
    let instance = uuid::Uuid::new_v4().to_string();
    while let Err(error) = exchange_once(config, &instance, queue, incoming).await {
        tracing::warn!(%error, "no news of other replicas for a while");
        let closed = async { while queue.recv().await.is_some() {} };
        if tokio::time::timeout(RECONNECT, closed).await.is_ok() {
            return;
        }
    }
}

/// Returns when the store is gone; fails when the connection is.
async fn exchange_once(
    config: &Config,
    instance: &str,
    queue: &mut mpsc::Receiver<String>,
    incoming: &broadcast::Sender<Change>,
) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = config.connect(NoTls).await?;
    let (heard, mut news) = mpsc::unbounded_channel();
    let drive = tokio::task::spawn(async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(note))) => {
                    // Nobody listens any more when the exchange is over.
                    let _ = heard.send(note.payload().to_owned());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            }
        }
    });
    client.batch_execute(LISTEN).await?;
    tell_listeners(incoming, Change::Missed);
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            payload = news.recv() => match payload {
                Some(payload) => hear(instance, &payload, incoming),
                None => break,
            },
            count = queue.recv_many(&mut batch, OUTGOING) => {
                if count == 0 {
                    return Ok(());
                }
                send(&client, instance, batch.drain(..).collect()).await?;
            }
        }
    }
    // The connection is over, with or without an error: the next statement says why.
    match drive.await {
        Ok(Err(error)) => Err(error),
        _ => client.batch_execute(LISTEN).await,
    }
}

async fn send(client: &Client, instance: &str, news: BTreeSet<String>) -> Result<(), tokio_postgres::Error> {
    let mut payload = instance.to_owned();
    for line in news {
        if payload.len() + 1 + line.len() > MAX_PAYLOAD_BYTES {
            client.execute(NOTIFY, &[&payload]).await?;
            instance.clone_into(&mut payload);
        }
        // Ids have no line breaks.
        payload.push('\n');
        payload.push_str(&line);
    }
    client.execute(NOTIFY, &[&payload]).await.map(drop)
}

fn hear(instance: &str, payload: &str, incoming: &broadcast::Sender<Change>) {
    let mut lines = payload.lines();
    if lines.next() == Some(instance) {
        return;
    }
    for change in lines.filter_map(change) {
        tell_listeners(incoming, change);
    }
}

/// What a line says. Lines of later versions may say more: they are skipped.
fn change(line: &str) -> Option<Change> {
    let (kind, id) = line.split_at_checked(1)?;
    let run = || RunId::new(id).ok();
    match kind {
        "r" => run().map(Change::Run),
        "w" => run().map(Change::Waiting),
        "c" => run().map(Change::Cancel),
        "s" => run().map(Change::Status),
        "k" => WorkerId::new(id).ok().map(Change::Worker),
        _ => None,
    }
}

fn tell_listeners(incoming: &broadcast::Sender<Change>, change: Change) {
    // An error only says that nobody listens.
    let _ = incoming.send(change);
}
