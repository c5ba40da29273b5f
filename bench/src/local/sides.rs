//! The figures of each side, taken in turn, and their rows.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::load::{self, Load, Replay};
use super::server::{Server, Used};
use super::stub;
use crate::client::Target;
use crate::cluster::memory::mib;
use crate::stats::Samples;
use crate::table::{Goal, Row, Table};

/// Sides: Cadre with a scripted model, Cadre and the peer with the model server.
const OWN: usize = 0;
const WIRE: usize = 1;
const PEER: usize = 2;
const SIDES: usize = 3;

/// Each load comes twice, so that a moment of another program's work does not fall on one side.
const ROUNDS: usize = 2;
const LOAD: Duration = Duration::from_millis(1500);
const CLIENTS: [usize; 3] = [1, 8, 32];
const STARTS: usize = 5;
const TURNS: usize = 200;

/// A figure of each side, where the side takes part.
type Figures<T> = [Option<T>; SIDES];

/// What is measured.
struct Sides {
    cadre: Server,
    peer: Option<Server>,
}

impl Sides {
    fn target(&self, side: usize) -> Option<Target> {
        match side {
            OWN => Some(self.cadre.target("own")),
            WIRE => Some(self.cadre.target("wire")),
            _ => self.peer.as_ref().map(|peer| peer.target("wire")),
        }
    }

    fn used(&self, side: usize) -> Used {
        match (side, &self.peer) {
            (PEER, Some(peer)) => peer.used(),
            _ => self.cadre.used(),
        }
    }

    /// Measures the same on each side, one side after the other.
    async fn each<T>(&self, measure: impl AsyncFn(&Target) -> Result<T>) -> Result<Figures<T>> {
        let mut figures = [const { None }; SIDES];
        for (side, figure) in figures.iter_mut().enumerate() {
            if let Some(target) = self.target(side) {
                *figure = Some(measure(&target).await.with_context(|| format!("agent {}", target.agent))?);
            }
        }
        Ok(figures)
    }
}

/// Measures all of it.
///
/// # Errors
/// When a server does not start or a run ends badly.
pub async fn measure(program: &Path, python: Option<&Path>, table: &mut Table) -> Result<()> {
    let model = stub::start().await?;
    table.section("cadre dev: SQLite, two worker processes, release build");
    starts(program, python, model, table).await?;
    let peer = match python {
        Some(python) => Some(Server::peer(python, model).await?),
        None => None,
    };
    let sides = Sides { cadre: Server::cadre(program, model).await?, peer };
    // Workers dial in after the first answer of the server.
    sides.each(async |target| load::turns(target, 1).await).await?;
    memory(&sides, "idle", Some(15.0), table);
    for clients in CLIENTS {
        runs(&sides, clients, table).await?;
    }
    queues(&sides, table).await?;
    streams(&sides, table).await?;
    flatness(&sides, table).await?;
    memory(&sides, "after all of this", Some(40.0), table);
    sides.cadre.stop().await?;
    if let Some(peer) = sides.peer {
        peer.stop().await?;
    }
    Ok(())
}

async fn starts(program: &Path, python: Option<&Path>, model: SocketAddr, table: &mut Table) -> Result<()> {
    let (mut own, mut other) = (Samples::default(), Samples::default());
    for _ in 0..STARTS {
        let server = Server::cadre(program, model).await?;
        own.push(server.started());
        server.stop().await?;
        if let Some(python) = python {
            let server = Server::peer(python, model).await?;
            other.push(server.started());
            server.stop().await?;
        }
    }
    let own = own.percentile(50);
    let row = Row::less(format!("start → first /health, p50 of {STARTS}"), "ms").own(own);
    table.push(row.goal(Some(Goal::AtMost(20.0))).beside(own, other.percentile(50)));
    Ok(())
}

fn memory(sides: &Sides, when: &str, goal_mb: Option<f64>, table: &mut Table) {
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
    server: Duration,
    workers: Duration,
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
impl Measured {
    fn count(&self) -> f64 {
        self.load.times.len() as f64
    }

    fn rate(&self) -> f64 {
        self.count() / self.load.took.as_secs_f64()
    }

    fn micros_a_run(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.count()
    }
}

async fn runs(sides: &Sides, clients: usize, table: &mut Table) -> Result<()> {
    let mut measured: Figures<Measured> = [const { None }; SIDES];
    for _ in 0..ROUNDS {
        for (side, measured) in measured.iter_mut().enumerate() {
            let Some(target) = sides.target(side) else { continue };
            let before = sides.used(side);
            let load = load::runs(&target, clients, LOAD).await?;
            let (server, workers) = sides.used(side).cpu_since(&before);
            let sum = measured.get_or_insert_default();
            sum.load.times.extend(load.times);
            sum.load.took += load.took;
            sum.server += server;
            sum.workers += workers;
        }
    }
    let many = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
    let figure = |pick: &dyn Fn(&Measured) -> Option<f64>| measured.each_ref().map(|side| pick(side.as_ref()?));
    let loaded = clients == 32;
    let one = clients == 1;
    push(
        table,
        Row::more(format!("stream=false, {many}: runs"), "runs/s"),
        figure(&|m| Some(m.rate())),
        loaded.then_some(Goal::AtLeast(7000.0)),
    );
    push(
        table,
        Row::less(format!("stream=false, {many}: p50"), "ms"),
        figure(&|m| m.load.times.percentile(50)),
        one.then_some(Goal::AtMost(0.6)),
    );
    push(table, Row::less(format!("stream=false, {many}: p99"), "ms"), figure(&|m| m.load.times.percentile(99)), None);
    let cpu = figure(&|m| Some(m.micros_a_run(m.server + m.workers)));
    push(
        table,
        Row::less(format!("stream=false, {many}: CPU a run, server and workers"), "µs"),
        cpu,
        loaded.then_some(Goal::AtMost(200.0)),
    );
    let workers = figure(&|m| Some(m.micros_a_run(m.workers)));
    push(
        table,
        Row::less(format!("stream=false, {many}: of it the workers"), "µs"),
        [workers[OWN], workers[WIRE], None],
        None,
    );
    Ok(())
}

fn push(table: &mut Table, row: Row, [own, wire, peer]: Figures<f64>, goal: Option<Goal>) {
    // Without a peer, the other side's figure is still worth a look.
    table.push(row.own(own).beside(wire, peer).goal(goal));
}

async fn queues(sides: &Sides, table: &mut Table) -> Result<()> {
    let accepts = sides.each(async |target| load::accepts(target, Duration::from_secs(1)).await).await?;
    let row = Row::more("background, 32 clients: accepted", "runs/s");
    push(table, row, accepts, Some(Goal::AtLeast(10_000.0)));
    let queued = sides.each(async |target| load::queue(target, 100, 5).await).await?;
    let row = Row::less("background: 500 runs in 100 sessions, to the last end", "s");
    push(table, row, queued.map(|time| Some(time?.as_secs_f64())), Some(Goal::AtMost(0.25)));
    Ok(())
}

async fn streams(sides: &Sides, table: &mut Table) -> Result<()> {
    let first = sides.each(async |target| load::first_events(target, 60).await).await?;
    for (percent, goal) in [(50, Some(Goal::AtMost(1.0))), (99, None)] {
        let figures = first.each_ref().map(|times| times.as_ref()?.percentile(percent));
        push(table, Row::less(format!("stream=true: first event, p{percent}"), "ms"), figures, goal);
    }
    let message = format!("Answer {}.", stub::MANY);
    let target = sides.cadre.target("wire");
    let ours = load::replay(&target, &message, 20).await.context("replay of Cadre's run")?;
    let theirs = match &sides.peer {
        Some(peer) => Some(load::replay(&peer.target("events"), &message, 5).await.context("replay of agno's run")?),
        None => None,
    };
    replayed(&ours, theirs.as_ref(), table);
    Ok(())
}

/// The model's pieces are the same on both sides; how many events they become is each side's choice.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn replayed(ours: &Replay, theirs: Option<&Replay>, table: &mut Table) {
    let pieces = stub::PIECES;
    let events = Some(ours.events as f64);
    let row = Row::less(format!("events of a run whose model spoke {pieces} pieces"), "");
    table.push(row.own(events));
    if let Some(theirs) = theirs {
        table.push(Row::less("the same: the peer's", "").beside(None, Some(theirs.events as f64)));
    }
    let own = ours.times.percentile(50);
    let peer = theirs.and_then(|replay| replay.times.percentile(50));
    let row = Row::less("replay of that run, p50", "ms").own(own).goal(Some(Goal::AtMost(1.5)));
    table.push(row.beside(own, peer));
}

async fn flatness(sides: &Sides, table: &mut Table) -> Result<()> {
    let turns = sides.each(async |target| load::turns(target, TURNS).await).await?;
    let (first, last) = (0..20, TURNS - 20..TURNS);
    let median = |range: &std::ops::Range<usize>| {
        turns.each_ref().map(|side| side.as_ref()?.range(range.clone()).percentile(50))
    };
    let (early, late) = (median(&first), median(&last));
    push(table, Row::less("one session: turns 1–20, p50", "ms"), early, None);
    push(table, Row::less("one session: turns 181–200, p50", "ms"), late, None);
    let growth = [OWN, WIRE, PEER].map(|side| Some(late[side]? / early[side]?));
    push(table, Row::less("one session: the last turns ÷ the first (flat: 1)", "×"), growth, None);
    Ok(())
}
