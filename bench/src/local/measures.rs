//! The figures of each side, taken in turn, and their rows.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::load::{self, Load, Replay};
use super::server::Server;
use super::sides::{Figures, OWN, PEER, Sides, WIRE};
use super::stub;
use crate::cluster::memory::mib;
use crate::table::{Goal, Row, Table};

/// Each load comes twice, so that a moment of another program's work does not fall on one side.
const ROUNDS: usize = 2;
const LOAD: Duration = Duration::from_millis(1500);
const TURNS: usize = 200;
/// Streams of new sessions whose first event is waited for.
const STREAMS: usize = 60;

/// Goals that depend on the database.
pub struct Goals {
    /// Milliseconds of a run at one client, p50.
    one_client: f64,
    /// Milliseconds of a replay of 5,000 events.
    replay: f64,
}

impl Goals {
    /// SQLite's.
    pub const SQLITE: Self = Self { one_client: 1.0, replay: 1.5 };
    /// SQLite's, where a power cut may take something.
    pub const NORMAL: Self = Self { one_client: 0.6, replay: 1.5 };
    /// PostgreSQL's.
    pub const POSTGRES: Self = Self { one_client: 1.3, replay: 3.0 };
}

/// Resident memory.
pub fn memory(sides: &Sides, when: &str, goal_mb: Option<f64>, table: &mut Table) {
    let (cadre, peer) = (sides.cadre.used(), sides.peer.as_ref().map(Server::used));
    let server = Some(mib(cadre.server.rss_kib));
    table.push(Row::less(format!("resident, {when}: server"), "MiB").own(server).goal(goal_mb.map(Goal::AtMost)));
    let all = Some(mib(cadre.rss_kib()));
    let row = Row::less(format!("resident, {when}: server and workers"), "MiB").own(all);
    table.push(row.beside(all, peer.map(|used| mib(used.rss_kib()))));
}

/// Runs of some clients at once.
#[derive(Default)]
struct Measured {
    load: Load,
    /// Server, workers, database.
    cpu: [Duration; 3],
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
impl Measured {
    fn count(&self) -> f64 {
        self.load.times.len() as f64
    }

    fn rate(&self) -> f64 {
        self.count() / self.load.took.as_secs_f64()
    }

    fn micros_a_run(&self, part: usize) -> f64 {
        self.cpu[part].as_secs_f64() * 1e6 / self.count()
    }
}

/// Runs without a stream, each in a new session.
///
/// # Errors
/// When a run ends badly.
pub async fn runs(sides: &Sides, clients: usize, goals: &Goals, table: &mut Table) -> Result<()> {
    let mut measured: Figures<Measured> = [const { None }; 3];
    for _ in 0..ROUNDS {
        for (side, measured) in measured.iter_mut().enumerate() {
            let Some(target) = sides.target(side) else { continue };
            let before = sides.used(side);
            let load = load::runs(&target, clients, LOAD).await?;
            let cpu = sides.used(side).cpu_since(&before);
            let sum = measured.get_or_insert_default();
            sum.load.times.extend(load.times);
            sum.load.took += load.took;
            sum.cpu.iter_mut().zip(cpu).for_each(|(sum, cpu)| *sum += cpu);
        }
    }
    let figure = |pick: &dyn Fn(&Measured) -> Option<f64>| measured.each_ref().map(|side| pick(side.as_ref()?));
    let name = |what: &str| match clients {
        1 => format!("stream=false, 1 client: {what}"),
        many => format!("stream=false, {many} clients: {what}"),
    };
    let rate = (clients == 32).then_some(Goal::AtLeast(7000.0));
    push(table, Row::more(name("runs"), "runs/s"), figure(&|m| Some(m.rate())), rate);
    let p50 = (clients == 1).then_some(Goal::AtMost(goals.one_client));
    push(table, Row::less(name("p50"), "ms"), figure(&|m| m.load.times.percentile(50)), p50);
    push(table, Row::less(name("p99"), "ms"), figure(&|m| m.load.times.percentile(99)), None);
    let cpu = (clients == 32).then_some(Goal::AtMost(200.0));
    let own = figure(&|m| Some(m.micros_a_run(0) + m.micros_a_run(1)));
    push(table, Row::less(name("CPU a run, server and workers"), "µs"), own, cpu);
    let [workers_own, workers_wire, _] = figure(&|m| Some(m.micros_a_run(1)));
    push(table, Row::less(name("of it the workers"), "µs"), [workers_own, workers_wire, None], None);
    let database = figure(&|m| Some(m.micros_a_run(2)).filter(|micros| *micros > 0.0));
    push(table, Row::less(name("CPU a run, database beside it"), "µs"), database, None);
    Ok(())
}

fn push(table: &mut Table, row: Row, [own, wire, peer]: Figures<f64>, goal: Option<Goal>) {
    // Without a peer, the other side's figure is still worth a look.
    table.push(row.own(own).beside(wire, peer).goal(goal));
}

/// Background runs.
///
/// # Errors
/// When a run is refused or ends badly.
pub async fn queues(sides: &Sides, table: &mut Table) -> Result<()> {
    let accepts = sides.each(async |target| load::accepts(target, Duration::from_secs(1)).await).await?;
    let row = Row::more("background, 32 clients: accepted", "runs/s");
    push(table, row, accepts, Some(Goal::AtLeast(10_000.0)));
    let queued = sides.each(async |target| load::queue(target, 100, 5).await).await?;
    let row = Row::less("background: 500 runs in 100 sessions, to the last end", "s");
    push(table, row, queued.map(|time| Some(time?.as_secs_f64())), Some(Goal::AtMost(0.25)));
    Ok(())
}

/// Streams of new sessions, inline and queued.
///
/// # Errors
/// When a run ends badly.
pub async fn first_events(sides: &Sides, table: &mut Table) -> Result<()> {
    for (queued, how, goal) in [(false, "stream=true", 1.0), (true, "stream=true, background=true", 3.0)] {
        let first = sides.each(async |target| load::first_events(target, STREAMS, queued).await).await?;
        for (percent, goal) in [(50, Some(Goal::AtMost(goal))), (99, None)] {
            let figures = first.each_ref().map(|times| times.as_ref()?.percentile(percent));
            push(table, Row::less(format!("{how}: first event, p{percent}"), "ms"), figures, goal);
        }
    }
    Ok(())
}

/// Turns of a run with many events: 25 answers of a hundred tool calls each, two events a call.
fn many_calls() -> String {
    let calls = vec!["{name: list_files}"; 100].join(", ");
    let turns = format!("- tools: [{calls}]\n").repeat(25);
    format!("```script\n{turns}- text: Done.\n```")
}

/// Runs of thousands of events, read again.
///
/// # Errors
/// When a run ends badly or can't be read.
pub async fn replays(sides: &Sides, goals: &Goals, table: &mut Table) -> Result<()> {
    let own = load::replay(&sides.cadre.target("many"), &many_calls(), 20).await.context("replay of many calls")?;
    ensure!(own.events >= 5000, "the run of many calls has {} events only", own.events);
    let message = format!("Answer {}.", stub::MANY);
    let wire = load::replay(&sides.cadre.target("wire"), &message, 20).await.context("replay of Cadre's answer")?;
    let peer = match &sides.peer {
        Some(peer) => Some(load::replay(&peer.target("events"), &message, 5).await.context("replay of agno's answer")?),
        None => None,
    };
    replayed([Some(own), Some(wire), peer], goals, table);
    Ok(())
}

/// Cadre's own run is one of many calls; the other two are the same answer in thousands of pieces, of which each side
/// makes as many events as it likes.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn replayed(replays: Figures<Replay>, goals: &Goals, table: &mut Table) {
    let pieces = stub::PIECES;
    let events = replays.each_ref().map(|replay| Some(replay.as_ref()?.events as f64));
    push(
        table,
        Row::neither(format!("events of a run of many calls; of an answer in {pieces} pieces"), ""),
        events,
        None,
    );
    let times = replays.each_ref().map(|replay| replay.as_ref()?.times.percentile(50));
    push(table, Row::less("replay of that run, p50", "ms"), times, Some(Goal::AtMost(goals.replay)));
}

/// Turns of one session.
///
/// # Errors
/// When a run ends badly.
pub async fn flatness(sides: &Sides, table: &mut Table) -> Result<()> {
    let turns = sides.each(async |target| load::turns(target, TURNS).await).await?;
    let median =
        |range: std::ops::Range<usize>| turns.each_ref().map(|side| side.as_ref()?.range(range.clone()).percentile(50));
    let (early, late) = (median(0..20), median(TURNS - 20..TURNS));
    push(table, Row::less("one session: turns 1–20, p50", "ms"), early, None);
    push(table, Row::less("one session: turns 91–110, p50", "ms"), median(90..110), None);
    push(table, Row::less("one session: turns 181–200, p50", "ms"), late, None);
    let growth = [OWN, WIRE, PEER].map(|side| Some(late[side]? / early[side]?));
    push(table, Row::less("one session: the last turns ÷ the first (flat: 1)", "×"), growth, None);
    Ok(())
}
