//! A round: start everything, kill, wait for all to complete, judge.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::client::{Client, Followed};
use super::dice::Dice;
use super::door::Door;
use super::hand::Hand;
use super::release::Release;
use super::table::Row;
use super::{Size, check, ledger, plan, work};
use crate::story::Story;
use crate::story::api::Started;
use crate::story::follow::{Frame, path, replay_by};
use crate::wait;

/// Longest time between two blows, and from the last one to the end of all.
const LIMIT: Duration = Duration::from_secs(600);
const ENDS: [&str; 4] = ["COMPLETED", "CANCELLED", "ERROR", "PAUSED"];
const HINT: &str = "CADRE_MATRIX_KEEP=1 keeps the release for a look";

/// Everything that a round needs.
#[derive(Debug)]
pub struct Matrix<'a> {
    /// The cluster.
    pub story: &'a Story,
    /// What is killed.
    pub release: &'a Release<'a>,
    /// Way in.
    pub door: Door,
    /// How large it is.
    pub size: Size,
}

impl<'a> Matrix<'a> {
    /// Makes the agent.
    ///
    /// # Errors
    /// When it doesn't become ready.
    pub fn new(story: &'a Story, release: &'a Release<'a>, size: Size) -> Result<Self> {
        for object in work::objects() {
            story.kubernetes.apply(release.work(), &object)?;
        }
        let is_ready = |agent: &serde_json::Value| crate::story::condition(agent, "Ready")["status"] == "True";
        story.kubernetes.wait(release.work(), "agents", work::AGENT, "to be ready", is_ready)?;
        Ok(Self { story, release, door: Door::new(story, release)?, size })
    }

    /// Plays a round, counted from 1.
    ///
    /// # Errors
    /// When it can't be brought to an end. What is wrong at its end is in the row.
    pub fn round(&self, round: usize) -> Result<Row> {
        self.release.ready()?;
        let (began, mut dice) = (Instant::now(), Dice::new(self.size.seed, 1000 + round as u64));
        let started = self.start(round)?;
        let clients = self.follow(&started, &mut dice);
        let killed = self.kill(round, &mut dice)?;
        let statuses = self.ended(&started)?;
        let mut row = Row { round, killed, runs: started.len(), took: began.elapsed(), ..Row::default() };
        self.release.ready()?;
        let records = self.records(&started, &mut row)?;
        self.judge(round, &statuses, &records, &mut row)?;
        for (run, client) in clients {
            let record = records.get(run).context("a client of no run")?;
            tell(run, &started, client.finish(), record, &mut row);
        }
        Ok(row)
    }

    fn start(&self, round: usize) -> Result<Vec<Started>> {
        let start = |run| {
            let (session, key) = (work::session(run, self.size.sessions), format!("r{round}-{run}"));
            self.door.start(work::AGENT, &work::message(round, run), &session, &key)
        };
        (0..self.size.runs).map(start).collect()
    }

    /// Clients of runs drawn at random, each with the number of its run.
    fn follow(&self, started: &[Started], dice: &mut Dice) -> Vec<(usize, Client)> {
        let mut numbered: Vec<_> = started.iter().enumerate().collect();
        dice.shuffle(&mut numbered);
        let client = |(run, started): (usize, &Started)| {
            let own = Dice::new(self.size.seed, 1_000_000 + dice.below(1_000_000) as u64);
            (run, Client::start(&self.door, started, own, 2 * LIMIT))
        };
        numbered.into_iter().take(self.size.clients).map(client).collect()
    }

    fn kill(&self, round: usize, dice: &mut Dice) -> Result<Vec<String>> {
        let hand = Hand::new(self.story, self.release);
        let mut folders = Vec::new();
        let blow = |plan::Blow { kill, after }: plan::Blow| {
            wait::until(&format!("{after} effects of round {round}"), LIMIT, HINT, || {
                Ok(self.progress(round, &mut folders)? >= after)
            })?;
            hand.strike(kill, dice).with_context(|| format!("{kill:?} in round {round}"))
        };
        plan::blows(self.size.seed, round, self.size.rounds, self.size.effects()).into_iter().map(blow).collect()
    }

    /// Lines in the round's ledgers.
    fn progress(&self, round: usize, folders: &mut Vec<PathBuf>) -> Result<usize> {
        if folders.len() < self.size.sessions.min(self.size.runs) {
            *folders = ledger::folders(self.story, self.release)?;
        }
        Ok(ledger::lines(folders, round).values().sum())
    }

    /// The runs' statuses, once all have ended.
    fn ended(&self, started: &[Started]) -> Result<Vec<String>> {
        let status = |started: &Started| {
            let mut status = String::new();
            wait::until(&format!("run {} of session {} to end", started.run, started.session), LIMIT, HINT, || {
                self.door.detail(started)?["status"].as_str().unwrap_or_default().clone_into(&mut status);
                Ok(ENDS.contains(&status.as_str()))
            })?;
            Ok(status)
        };
        started.iter().map(status).collect()
    }

    /// What the record tells of each run. Every replica must tell the same.
    fn records(&self, started: &[Started], row: &mut Row) -> Result<Vec<Vec<Frame>>> {
        let replicas = self.door.all()?;
        let mut records = Vec::new();
        for started in started {
            let path = path(started);
            let replay = |replica| replay_by(|headers| self.door.at(replica, "POST", &path, headers));
            let mut told = replicas.iter().map(|replica| replay(*replica)).collect::<Result<Vec<_>>>()?;
            let record = told.pop().unwrap_or_default();
            for other in told {
                let fault = check::stream(&other, &record);
                row.faults.extend(fault.map(|text| format!("run {}: replicas differ: {text}", started.run)));
            }
            records.push(record);
        }
        Ok(records)
    }

    fn judge(&self, round: usize, statuses: &[String], records: &[Vec<Frame>], row: &mut Row) -> Result<()> {
        let lines = ledger::lines(&ledger::folders(self.story, self.release)?, round);
        for (run, (status, record)) in statuses.iter().zip(records).enumerate() {
            let outcome = check::run(round, run, status, record, &lines);
            row.effects += outcome.effects;
            row.unknown += outcome.unknown;
            row.resumed += usize::from(outcome.resumed);
            let id = record.first().map(|frame| frame.data["run_id"].clone()).unwrap_or_default();
            row.faults.extend(outcome.faults.into_iter().map(|fault| format!("run {id} ({run}): {fault}")));
        }
        let known: usize = row.effects;
        let all: usize = lines.values().sum();
        if all != known {
            row.faults.push(format!("{} lines in the ledgers are nobody's: {lines:?}", all.abs_diff(known)));
        }
        Ok(())
    }

    /// Effects of earlier rounds that were not there when these were judged: a tool that outlived its run.
    ///
    /// # Errors
    /// When Kubernetes doesn't answer.
    pub fn late(&self, rows: &[Row]) -> Result<Vec<String>> {
        let folders = ledger::folders(self.story, self.release)?;
        let now = |row: &Row| ledger::lines(&folders, row.round).values().sum::<usize>();
        let late = rows.iter().filter(|row| now(row) != row.effects);
        Ok(late
            .map(|row| format!("round {} had {} effects and now has {}", row.round, row.effects, now(row)))
            .collect())
    }
}

/// What a client saw, beside what the record tells.
fn tell(run: usize, started: &[Started], followed: Result<Followed>, record: &[Frame], row: &mut Row) {
    let id = started.get(run).map_or("", |started| &started.run);
    match followed {
        Ok(Followed { frames, connections }) => {
            row.clients += 1;
            row.events += frames.len();
            row.reconnects += connections.saturating_sub(1);
            row.faults.extend(check::stream(&frames, record).map(|text| format!("client of run {id}: {text}")));
        }
        Err(error) => row.faults.push(format!("client of run {id}: {error:#}")),
    }
}
