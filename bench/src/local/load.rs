//! Loads on a server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use uuid::Uuid;

use crate::client::{Client, Target};
use crate::stats::Samples;

/// Longest wait for runs that were accepted.
const DRAIN: Duration = Duration::from_secs(60);
/// Pause between two looks at such a run, and after "the queue is full".
const LOOK: Duration = Duration::from_millis(2);

/// Runs of several clients at once.
#[derive(Debug, Default)]
pub struct Load {
    /// Time of each run.
    pub times: Samples,
    /// Time of all.
    pub took: Duration,
}

fn session() -> String {
    Uuid::new_v4().to_string()
}

/// Each client runs the agent again and again, each time in a new session, and waits for the answer.
///
/// # Errors
/// When a run ends badly.
pub async fn runs(target: &Target, clients: usize, time: Duration) -> Result<Load> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(Client::connect(target).await?);
    }
    let began = Instant::now();
    let client = async |mut client: Client| -> Result<Samples> {
        let mut times = Samples::default();
        while began.elapsed() < time {
            times.push(client.run(&session(), "Hello").await?);
        }
        Ok(times)
    };
    let mut load = Load::default();
    for times in try_join_all(connected.into_iter().map(client)).await? {
        load.times.extend(times);
    }
    load.took = began.elapsed();
    Ok(load)
}

/// Turns of one session, one after the other.
///
/// # Errors
/// When a run ends badly.
pub async fn turns(target: &Target, count: usize) -> Result<Samples> {
    let mut client = Client::connect(target).await?;
    let (session, mut times) = (session(), Samples::default());
    for _ in 0..count {
        times.push(client.run(&session, "Hello").await?);
    }
    Ok(times)
}

/// Time to the first event of new sessions, one after the other.
///
/// # Errors
/// When a run ends badly.
pub async fn first_events(target: &Target, count: usize, queued: bool) -> Result<Samples> {
    let mut client = Client::connect(target).await?;
    let mut times = Samples::default();
    for _ in 0..count {
        let stream = client.stream(&session(), "Hello", queued).await?;
        times.push(stream.first(None).context("a run has no events")?);
    }
    Ok(times)
}

/// Runs accepted in a second by 32 clients, each in a new session; then waits for their ends.
///
/// # Errors
/// When a run is refused for another reason than a full queue.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub async fn accepts(target: &Target, time: Duration) -> Result<f64> {
    let mut connected = Vec::new();
    for _ in 0..32 {
        connected.push(Client::connect(target).await?);
    }
    let began = Instant::now();
    let client = async |mut client: Client| -> Result<(usize, Option<(String, String)>)> {
        let (mut count, mut last) = (0, None);
        while began.elapsed() < time {
            let session = session();
            match client.submit(&session, "Hello").await? {
                Some(run_id) => {
                    count += 1;
                    last = Some((session, run_id));
                }
                None => tokio::time::sleep(LOOK).await,
            }
        }
        Ok((count, last))
    };
    let accepted = try_join_all(connected.into_iter().map(client)).await?;
    let took = began.elapsed();
    let mut looking = Client::connect(target).await?;
    for (session, run_id) in accepted.iter().filter_map(|(_, last)| last.as_ref()) {
        ended(&mut looking, session, run_id).await?;
    }
    Ok(accepted.iter().map(|(count, _)| count).sum::<usize>() as f64 / took.as_secs_f64())
}

/// Queues runs, several in each session, and waits for all of them; answers the time from the first to the last.
///
/// # Errors
/// When a run is refused or ends badly.
pub async fn queue(target: &Target, sessions: usize, each: usize) -> Result<Duration> {
    const CLIENTS: usize = 20;
    let mut connected = Vec::new();
    for _ in 0..CLIENTS {
        connected.push(Client::connect(target).await?);
    }
    let began = Instant::now();
    let client = async |mut client: Client| -> Result<()> {
        let mut own: Vec<_> = (0..sessions / CLIENTS).map(|_| (session(), String::new())).collect();
        for _ in 0..each {
            for (session, last) in &mut own {
                *last = client.submit(session, "Hello").await?.context("the queue is full")?;
            }
        }
        for (session, last) in &own {
            ended(&mut client, session, last).await?;
        }
        Ok(())
    };
    try_join_all(connected.into_iter().map(client)).await?;
    Ok(began.elapsed())
}

/// Waits for the end of a run. A run that was just accepted may be unknown for a moment.
async fn ended(client: &mut Client, session: &str, run_id: &str) -> Result<()> {
    let began = Instant::now();
    loop {
        match client.status(session, run_id).await.as_deref() {
            Ok("COMPLETED") => return Ok(()),
            Ok("ERROR" | "CANCELLED") => anyhow::bail!("run {run_id} ended badly"),
            _ => {}
        }
        ensure!(began.elapsed() < DRAIN, "run {run_id} does not end");
        tokio::time::sleep(LOOK).await;
    }
}

/// A run with thousands of events, read again several times.
#[derive(Debug, Default)]
pub struct Replay {
    /// Events of the run.
    pub events: usize,
    /// Time of each reading.
    pub times: Samples,
}

/// Makes such a run and reads it again.
///
/// # Errors
/// When it can't be read.
pub async fn replay(target: &Target, message: &str, times: usize) -> Result<Replay> {
    let mut client = Client::connect(target).await?;
    let session = session();
    let made = client.stream(&session, message, false).await?;
    let run_id = made.run_id.context("the run has no id")?;
    let mut replay = Replay { events: made.events.len(), ..Replay::default() };
    for _ in 0..times {
        let again = client.replay(&session, &run_id).await?;
        let last = again.events.last().map(|event| event.name.as_str());
        ensure!(again.events.len() >= made.events.len() / 2, "the replay has {} events", again.events.len());
        ensure!(last == Some("RunCompleted"), "the replay ends with {last:?}");
        replay.times.push(again.ended);
    }
    Ok(replay)
}
