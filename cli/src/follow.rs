//! A run's events, each once, whatever happens to connections and servers on the way.

use std::time::Duration;

use bytes::Bytes;
use cadre_protocol::event::RunEvent;
use eventsource_stream::{Event, EventStreamError, Eventsource as _};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::HeaderName;
use tokio::time::{Instant, sleep, timeout};

use crate::api::{Answer, Api, Body, CallError, SILENCE, segment};
use crate::multipart::Form;
use crate::render::events::End;
use crate::transport::Unreachable;

/// Pauses between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long tries go on while no server answers.
const PATIENCE: Duration = Duration::from_secs(180);
/// Replays of an ended run without a new event, after which none is expected any more.
const MAX_EMPTY_REPLAYS: u32 = 3;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// An event, or a word of the server between events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Name.
    pub name: String,
    /// JSON.
    pub data: String,
    /// Whether it is an event of the run, and no word between.
    pub is_event: bool,
}

impl Frame {
    /// The event; none for kinds that this program does not know.
    #[must_use]
    pub fn event(&self) -> Option<RunEvent> {
        serde_json::from_str(&self.data).ok()
    }

    /// A text of its data.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        let data: serde_json::Value = serde_json::from_str(&self.data).ok()?;
        data.get(name)?.as_str().map(str::to_owned)
    }

    /// Of a control frame: from which number on an event that tells of an end is the run's last. Before it, the run has
    /// failed and gone on.
    fn last_from(&self) -> Option<u64> {
        let data: serde_json::Value = serde_json::from_str(&self.data).ok()?;
        let number = |name: &str| data.get(name)?.as_u64();
        match self.name.as_str() {
            "replay" => Some(number("total_buffered")?.saturating_sub(1)),
            _ => number("current_event_count"),
        }
    }
}

type Events = BoxStream<'static, Result<Event, EventStreamError<Silent>>>;

/// A stream that broke off or fell silent.
#[derive(Debug, thiserror::Error)]
enum Silent {
    #[error(transparent)]
    Broken(#[from] Unreachable),
    #[error("nothing came for {} seconds", SILENCE.as_secs())]
    Long,
}

/// Follows one run.
pub struct Follower {
    api: Api,
    agent_id: String,
    run_id: String,
    last: Option<u64>,
    events: Option<Events>,
    /// Connections since the last event.
    tries: u32,
    failing_since: Option<Instant>,
    patience: Duration,
    empty_replays: u32,
    replaying: bool,
    /// Number from which on an event that tells of an end is the last one: a run that had failed may have gone on.
    last_from: u64,
    over: bool,
}

impl Follower {
    /// From the first event on.
    #[must_use]
    pub fn new(api: Api, agent_id: &str, run_id: &str) -> Self {
        Self {
            api,
            agent_id: agent_id.to_owned(),
            run_id: run_id.to_owned(),
            last: None,
            events: None,
            tries: 0,
            failing_since: None,
            patience: PATIENCE,
            empty_replays: 0,
            replaying: false,
            last_from: 0,
            over: false,
        }
    }

    /// Begins with the stream that the run was made with.
    #[must_use]
    pub fn with(mut self, answer: Answer) -> Self {
        self.events = Some(events(answer.body));
        self
    }

    /// The next frame; none after the run's last event. Comes back after lost connections by itself.
    ///
    /// # Errors
    /// When the server refuses, or can't be reached for minutes.
    pub async fn next(&mut self) -> Result<Option<Frame>, CallError> {
        while !self.over {
            let Some(events) = &mut self.events else {
                self.connect().await?;
                continue;
            };
            match events.next().await {
                Some(Ok(event)) => {
                    if let Some(frame) = self.take(event)? {
                        return Ok(Some(frame));
                    }
                }
                Some(Err(_)) => self.events = None,
                None => self.ended(),
            }
        }
        Ok(None)
    }

    /// A stream ended in order. Servers end streams when they stop too, so that is no news of the run, unless it has
    /// ended and all that there is was sent several times.
    fn ended(&mut self) {
        self.events = None;
        if self.replaying {
            self.empty_replays += 1;
            self.over = self.empty_replays >= MAX_EMPTY_REPLAYS;
        }
    }

    fn take(&mut self, event: Event) -> Result<Option<Frame>, CallError> {
        let Event { event: name, data, id, .. } = event;
        let control = matches!(name.as_str(), "replay" | "catch_up" | "subscribed" | "error");
        let frame = Frame { name, data, is_event: !control };
        if control {
            self.replaying |= frame.name == "replay";
            self.last_from = frame.last_from().unwrap_or(self.last_from);
            return if frame.name == "error" { Err(refused(&frame)) } else { Ok(Some(frame)) };
        }
        let index = id.parse::<u64>().ok();
        if let Some(index) = index {
            if self.last.is_some_and(|last| index <= last) {
                return Ok(None);
            }
            self.last = Some(index);
        }
        (self.tries, self.empty_replays) = (0, 0);
        self.over = End::of(&frame.name).is_some() && index.is_none_or(|index| index >= self.last_from);
        Ok(Some(frame))
    }

    async fn connect(&mut self) -> Result<(), CallError> {
        if self.tries > 0 {
            sleep(FIRST_PAUSE.saturating_mul(1 << self.tries.min(8)).min(LONGEST_PAUSE)).await;
        }
        self.tries += 1;
        let path = format!("/agents/{}/runs/{}/resume", segment(&self.agent_id), segment(&self.run_id));
        // A negative number says that there is none yet.
        let index = self.last.map_or_else(|| "-1".to_owned(), |last| last.to_string());
        let form = Form { fields: vec![("last_event_index", index.clone())], ..Form::default() };
        match self.api.post(&path, &form, &[(LAST_EVENT_ID, &index)]).await {
            Ok(answer) => {
                (self.replaying, self.failing_since) = (false, None);
                self.events = Some(events(answer.body));
                Ok(())
            }
            Err(error) => {
                let since = *self.failing_since.get_or_insert_with(Instant::now);
                if error.may_pass() && since.elapsed() < self.patience { Ok(()) } else { Err(error) }
            }
        }
    }
}

fn refused(frame: &Frame) -> CallError {
    CallError::Refused {
        status: http::StatusCode::NOT_FOUND,
        code: "not_found".to_owned(),
        detail: frame.text("error").unwrap_or_else(|| "the stream can't be had".to_owned()),
    }
}

fn events(body: Body) -> Events {
    stream::unfold(Some(body), |body| async {
        let mut body = body?;
        match timeout(SILENCE, body.next()).await {
            Ok(Some(Ok(chunk))) => Some((Ok::<Bytes, Silent>(chunk), Some(body))),
            Ok(Some(Err(error))) => Some((Err(error.into()), None)),
            Ok(None) => None,
            Err(_) => Some((Err(Silent::Long), None)),
        }
    })
    .eventsource()
    .boxed()
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
