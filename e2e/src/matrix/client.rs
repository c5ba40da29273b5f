//! A client that follows a run at one replica after the other and hangs up whenever it likes.

use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};

use super::dice::Dice;
use super::door::Door;
use crate::story::api::Started;
use crate::story::follow::{Frame, connection, path};
use crate::wait;

/// It hangs up after so many events at most.
const PATIENCE: usize = 12;

/// A client at work.
#[derive(Debug)]
pub struct Client(JoinHandle<Result<Followed>>);

/// What it saw.
#[derive(Debug)]
pub struct Followed {
    /// Events, in the order in which they came.
    pub frames: Vec<Frame>,
    /// Tries to connect.
    pub connections: u32,
}

impl Client {
    /// Follows a run from its beginning to its end, for `limit` at most.
    #[must_use]
    pub fn start(door: &Door, started: &Started, dice: Dice, limit: Duration) -> Self {
        let (door, started) = (door.clone(), started.clone());
        Self(std::thread::spawn(move || follow(&door, &started, dice, limit)))
    }

    /// What it saw, once it has seen the end.
    ///
    /// # Errors
    /// When the end did not come, or the stream was refused.
    pub fn finish(self) -> Result<Followed> {
        self.0.join().map_err(|_| anyhow!("a client broke"))?
    }
}

fn follow(door: &Door, started: &Started, mut dice: Dice, limit: Duration) -> Result<Followed> {
    let (path, mut last) = (path(started), None);
    let mut followed = Followed { frames: Vec::new(), connections: 0 };
    let what = format!("the last event of run {} at its client", started.run);
    wait::until(&what, limit, "read the API servers' logs", || {
        followed.connections += 1;
        let mut refusal = None;
        let open = |headers: &[(&str, &str)]| {
            let replica = door.next()?;
            let answer = door.at(replica, "POST", &path, headers)?;
            // Broken connections and 503 are what this client is about; any other answer is not.
            if ![200, 503].contains(&answer.status) {
                let (status, text) = (answer.status, answer.text()?);
                refusal = Some(format!("{replica} answers {status}: {text}"));
                bail!("refused");
            }
            Ok(answer)
        };
        let take = |frame| {
            followed.frames.push(frame);
            true
        };
        let over = connection(open, &mut last, Some(1 + dice.below(PATIENCE)), take);
        ensure!(refusal.is_none(), "{}", refusal.unwrap_or_default());
        Ok(over.unwrap_or(false))
    })?;
    Ok(followed)
}
