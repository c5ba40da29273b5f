//! Events: the story of an object for people. Stories arise where a status changes, never on a resync, and are
//! published here only.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Stories that may wait for publication; further ones are dropped, as events are no record.
const WAITING: usize = 1024;
/// Longest note that Kubernetes accepts, in bytes.
const MAX_NOTE: usize = 1000;

/// Something that happened to an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Story {
    /// Whether people should look.
    pub warning: bool,
    /// What happened, CamelCase.
    pub reason: &'static str,
    /// What the operator did, CamelCase.
    pub action: &'static str,
    /// A sentence.
    pub note: String,
}

impl Story {
    /// Nothing to worry about.
    #[must_use]
    pub fn normal(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self { warning: false, reason, action, note: note.into() }
    }

    /// People should look.
    #[must_use]
    pub fn warning(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self { warning: true, reason, action, note: note.into() }
    }
}

/// Takes stories without waiting.
#[derive(Debug, Clone)]
pub struct Teller(mpsc::Sender<(Story, ObjectReference)>);

impl Teller {
    /// A teller, and what it tells.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<(Story, ObjectReference)>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Queues a story.
    pub fn tell(&self, story: Story, regarding: ObjectReference) {
        if self.0.try_send((story, regarding)).is_err() {
            tracing::debug!("an event was dropped: too many wait");
        }
    }
}

/// Publishes stories until told to stop.
pub async fn publish(
    client: Client,
    instance: String,
    mut stories: mpsc::Receiver<(Story, ObjectReference)>,
    stop: CancellationToken,
) {
    let recorder =
        Recorder::new(client, Reporter { controller: "cadre.dev/operator".into(), instance: Some(instance) });
    while let Some(Some((story, regarding))) = stop.run_until_cancelled(stories.recv()).await {
        let Story { warning, reason, action, note } = story;
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(shortened(note)),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &regarding).await {
            tracing::warn!(%error, reason, object = regarding.name, "could not publish an event");
        }
    }
}

fn shortened(mut note: String) -> String {
    if note.len() > MAX_NOTE {
        let cut = (0..=MAX_NOTE).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
        note.truncate(cut);
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_cut_between_characters() {
        assert_eq!(shortened("short".into()), "short");
        assert_eq!(shortened("é".repeat(600)).len(), MAX_NOTE);
        assert_eq!(shortened(format!("x{}", "é".repeat(600))).len(), MAX_NOTE - 1);
    }
}
