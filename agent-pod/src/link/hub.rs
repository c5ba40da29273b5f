//! The state behind its lock, with a bell for the connection. Everything here returns at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc};

use super::state::{News, State};

/// Shared by the connection and all runs.
#[derive(Clone)]
pub struct Hub {
    state: Arc<Mutex<State>>,
    bell: Arc<Notify>,
    news: mpsc::UnboundedSender<News>,
}

impl Hub {
    /// A hub, and the end at which assignments come out.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<News>) {
        let (news, receiver) = mpsc::unbounded_channel();
        (Self { state: Arc::default(), bell: Arc::default(), news }, receiver)
    }

    /// Looks at or changes the state without making anything ready to send.
    pub fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.lock())
    }

    /// Changes the state and wakes the connection.
    pub fn send<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let result = act(&mut self.lock());
        self.bell.notify_one();
        result
    }

    /// Waits until something may be ready to send.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Passes news on.
    pub(super) fn tell(&self, news: News) {
        // Nobody listens when the process is ending.
        let _ = self.news.send(news);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics under this lock; if it did, the state would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
