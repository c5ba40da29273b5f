//! Pieces of an answer on their way to a worker. A slow link makes pieces larger, never more numerous, so that the
//! model's reader is never held up and memory stays within one answer's size.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cadre_protocol::model::ModelDelta;
use tokio::sync::Notify;

/// Pieces that wait for the link.
#[derive(Clone, Default)]
pub struct Deltas(Arc<Inner>);

#[derive(Default)]
struct Inner {
    waiting: Mutex<VecDeque<ModelDelta>>,
    bell: Notify,
}

impl Deltas {
    /// Adds a piece; joins it with the last one if that has not left yet.
    pub fn push(&self, delta: ModelDelta) {
        let mut waiting = self.lock();
        match (waiting.back_mut(), &delta) {
            (Some(ModelDelta::Text(last)), ModelDelta::Text(more))
            | (Some(ModelDelta::Reasoning(last)), ModelDelta::Reasoning(more)) => last.push_str(more),
            _ => waiting.push_back(delta),
        }
        drop(waiting);
        self.0.bell.notify_one();
    }

    /// The next piece; waits for one.
    pub async fn next(&self) -> ModelDelta {
        loop {
            if let Some(delta) = self.try_next() {
                return delta;
            }
            self.0.bell.notified().await;
        }
    }

    /// The next piece, if there is one.
    #[must_use]
    pub fn try_next(&self) -> Option<ModelDelta> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ModelDelta>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_that_wait_are_joined_by_kind() {
        let deltas = Deltas::default();
        let text = |text: &str| ModelDelta::Text(text.to_owned());
        for delta in [text("a"), text("b"), ModelDelta::Reasoning("c".into()), text("d")] {
            deltas.push(delta);
        }
        assert_eq!(deltas.next().await, text("ab"));
        assert_eq!(deltas.next().await, ModelDelta::Reasoning("c".into()));
        assert_eq!(deltas.next().await, text("d"));
        assert_eq!(deltas.try_next(), None);
    }
}
