//! The engine's socket: one connection, the next only after the first has ended.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tracing::{info, warn};

use super::link::{Shared, converse};
use super::{ExecClient, ExecState};

/// The listening socket, before anything is accepted.
#[derive(Debug)]
pub struct ExecListener {
    listener: UnixListener,
}

impl ExecListener {
    /// Listens at `path`, replacing a socket that an earlier engine left there.
    ///
    /// The file gets mode 0666, for the sandbox's user is another one; the folder is mounted read-only in the sandbox,
    /// so that nobody there can put another socket in its place.
    ///
    /// # Errors
    /// When the path is taken by something else, or cannot be bound.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
            Ok(_) => return Err(io::Error::from(io::ErrorKind::AlreadyExists)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
        Ok(Self { listener })
    }

    /// Starts to accept, in a task of its own that ends when the last client is dropped.
    ///
    /// Connections are greeted once [`ExecClient::set_epoch`] was called.
    #[must_use]
    pub fn start(self) -> ExecClient {
        let (state_sender, state) = watch::channel(ExecState::Absent);
        let (epoch_sender, epoch) = watch::channel(None);
        let shared = Arc::new(Shared::new(state_sender));
        tokio::spawn(accept(self.listener, Arc::clone(&shared), epoch));
        ExecClient { shared, state, epoch: Arc::new(epoch_sender) }
    }
}

async fn accept(
    listener: UnixListener,
    shared: Arc<Shared>,
    mut epoch: watch::Receiver<Option<cadre_protocol::ids::Epoch>>,
) {
    loop {
        let Some(stream) = next(&listener, &mut epoch).await else { return };
        info!("the sandbox connected");
        let reason = {
            let conversation = converse(stream, Arc::clone(&shared), epoch.clone());
            tokio::pin!(conversation);
            loop {
                tokio::select! {
                    reason = &mut conversation => break reason,
                    // Dropping the stream closes it: one connection at a time.
                    second = listener.accept() => if second.is_ok() {
                        warn!("closed a second connection to the sandbox socket");
                    },
                }
            }
        };
        shared.disconnect();
        warn!(reason = %reason, "the sandbox disconnected");
    }
}

/// The next connection, or `None` when no client is left (each holds the epoch's sender).
async fn next(
    listener: &UnixListener,
    epoch: &mut watch::Receiver<Option<cadre_protocol::ids::Epoch>>,
) -> Option<UnixStream> {
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => return Some(stream),
                Err(error) => {
                    warn!(%error, "could not accept a connection of the sandbox");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
            changed = epoch.changed() => if changed.is_err() { return None },
        }
    }
}
