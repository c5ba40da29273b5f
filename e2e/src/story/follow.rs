//! A client of an event stream that loses its connection again and again, and must miss and repeat nothing.

use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::api::{Api, Started};
use super::http::Response;

/// The client hangs up after so many events.
const PATIENCE: usize = 9;
/// Longest time without any event.
const SILENCE: Duration = Duration::from_secs(240);
const ENDS: [&str; 3] = ["RunCompleted", "RunError", "RunCancelled"];

/// An event with a number.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub event: String,
    /// Its data.
    pub data: Value,
}

impl Frame {
    /// Whether it is this event of this tool call.
    #[must_use]
    pub fn is_call(&self, event: &str, number: usize) -> bool {
        let command = self.data["tool"]["tool_args"]["command"].as_str().unwrap_or_default();
        self.event == event && command.contains(&format!("call-{number} "))
    }

    /// Whether it is a custom event of this kind.
    #[must_use]
    pub fn is_custom(&self, kind: &str) -> bool {
        self.event == "CustomEvent" && self.data["type"] == kind
    }
}

/// A client that follows a run to its end, in the background.
#[derive(Debug)]
pub struct Follower {
    frames: Receiver<Frame>,
    seen: Vec<Frame>,
    thread: JoinHandle<Result<u32>>,
}

impl Follower {
    /// Follows a run from its beginning.
    #[must_use]
    pub fn start(api: &Api, started: &Started) -> Self {
        let (sender, frames) = channel();
        let (api, path) = (api.clone(), path(started));
        let thread = std::thread::spawn(move || {
            let (mut last, mut connections) = (None, 0);
            let mut heard = Instant::now();
            loop {
                connections += 1;
                let before = last;
                // A connection that breaks is what this client is about: it opens the next.
                let open = |headers: &[(&str, &str)]| api.once("POST", &path, headers, &[]);
                let over = connection(open, &mut last, Some(PATIENCE), |frame| sender.send(frame).is_ok());
                if matches!(over, Ok(true)) {
                    return Ok(connections);
                }
                if before != last {
                    heard = Instant::now();
                }
                ensure!(heard.elapsed() < SILENCE, "no event for {} s; last: {over:?}", SILENCE.as_secs());
            }
        });
        Self { frames, seen: Vec::new(), thread }
    }

    /// Waits for an event. One that has passed counts.
    ///
    /// # Errors
    /// When the run ends without it, or nothing comes for long.
    pub fn until(&mut self, what: &str, is_it: impl Fn(&Frame) -> bool) -> Result<Frame> {
        if let Some(frame) = self.seen.iter().find(|frame| is_it(frame)) {
            return Ok(frame.clone());
        }
        loop {
            let frame = match self.frames.recv_timeout(SILENCE) {
                Ok(frame) => frame,
                Err(RecvTimeoutError::Timeout) => bail!("waited for {what}; seen: {}", self.story()),
                Err(RecvTimeoutError::Disconnected) => bail!("no {what} before the end; seen: {}", self.story()),
            };
            self.seen.push(frame.clone());
            if is_it(&frame) {
                return Ok(frame);
            }
        }
    }

    fn story(&self) -> String {
        let names: Vec<_> = self.seen.iter().map(|frame| format!("{} {}", frame.id, frame.event)).collect();
        names.join(", ")
    }

    /// All events, once the run has ended; and how many connections it took.
    ///
    /// # Errors
    /// When the stream can't be followed to its end.
    pub fn finish(mut self) -> Result<(Vec<Frame>, u32)> {
        let connections = self.thread.join().map_err(|_| anyhow!("the client broke"))??;
        self.seen.extend(self.frames.try_iter());
        Ok((self.seen, connections))
    }
}

/// All events of a run that has ended, in one connection.
///
/// # Errors
/// When the stream breaks off.
pub fn replay(api: &Api, started: &Started) -> Result<Vec<Frame>> {
    let path = path(started);
    replay_by(|headers| api.once("POST", &path, headers, &[]))
}

/// All events of a run that has ended, in the one connection that `open` makes with these headers.
///
/// # Errors
/// When the stream breaks off.
pub fn replay_by(open: impl FnOnce(&[(&str, &str)]) -> Result<Response>) -> Result<Vec<Frame>> {
    let mut frames = Vec::new();
    let complete = connection(open, &mut None, None, |frame| {
        frames.push(frame);
        true
    })?;
    ensure!(complete, "the replay has no end");
    Ok(frames)
}

/// Where a run's stream goes on.
#[must_use]
pub fn path(Started { agent, run, session: _ }: &Started) -> String {
    format!("/agents/{agent}/runs/{run}/resume")
}

/// One connection, which `open` makes with the headers that say from where on. It ends after `patience` events, if given.
/// True: the last event came.
///
/// # Errors
/// When it can't be opened, or breaks off.
pub fn connection(
    open: impl FnOnce(&[(&str, &str)]) -> Result<Response>,
    last: &mut Option<u64>,
    patience: Option<usize>,
    mut take: impl FnMut(Frame) -> bool,
) -> Result<bool> {
    let text = last.map(|last| last.to_string());
    let headers: Vec<_> = text.iter().map(|last| ("Last-Event-ID", last.as_str())).collect();
    let answer = open(&headers)?;
    ensure!(answer.status == 200, "the stream answers {}", answer.status);
    let mut lines = BufReader::new(answer).lines();
    let mut count = 0;
    while let Some(frame) = next(&mut lines)? {
        *last = Some(frame.id);
        count += 1;
        let over = ENDS.contains(&frame.event.as_str());
        if !take(frame) || over {
            return Ok(true);
        }
        if patience == Some(count) {
            return Ok(false);
        }
    }
    Ok(false)
}

/// The next event with a number; control frames and comments are passed over.
fn next(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Result<Option<Frame>> {
    let (mut id, mut event, mut data) = (None, String::new(), String::new());
    for line in lines {
        let line = line?;
        match line.split_once(": ") {
            Some(("id", value)) => id = Some(value.parse().context("an id that is no number")?),
            Some(("event", value)) => value.clone_into(&mut event),
            Some(("data", value)) => value.clone_into(&mut data),
            _ => {}
        }
        if line.is_empty() {
            if let Some(id) = id {
                return Ok(Some(Frame { id, event, data: serde_json::from_str(&data)? }));
            }
            event.clear();
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_from_what_is_between_them() {
        let text = ": keepalive\n\nevent: catch_up\ndata: {}\n\nid: 3\nevent: RunContent\ndata: {\"content\":\"a: b\"}\n\nid: 4\nevent";
        let mut lines = text.lines().map(|line| Ok(line.to_owned()));
        let frame = next(&mut lines).unwrap().unwrap();
        assert_eq!((frame.id, frame.event.as_str()), (3, "RunContent"));
        assert_eq!(frame.data["content"], "a: b");
        assert_eq!(next(&mut lines).unwrap(), None, "half a frame is none");
    }
}
