//! Which servers are measured against each other, and in which order.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::measures::{self, Goals};
use super::postgres::Postgres;
use super::server::{Record, Server, Used};
use super::{What, load, stub, troubles};
use crate::client::Target;
use crate::stats::Samples;
use crate::table::{Goal, Row, Table};

/// Sides: Cadre with a scripted model, Cadre and the peer with the model server.
pub const OWN: usize = 0;
/// See [`OWN`].
pub const WIRE: usize = 1;
/// See [`OWN`].
pub const PEER: usize = 2;
const SIDES: usize = 3;

const STARTS: usize = 5;

/// A figure of each side, where the side takes part.
pub type Figures<T> = [Option<T>; SIDES];

/// What is measured.
pub struct Sides {
    /// Cadre.
    pub cadre: Server,
    /// agno.
    pub peer: Option<Server>,
}

impl Sides {
    /// A side's agent.
    pub fn target(&self, side: usize) -> Option<Target> {
        match side {
            OWN => Some(self.cadre.target("own")),
            WIRE => Some(self.cadre.target("wire")),
            _ => self.peer.as_ref().map(|peer| peer.target("wire")),
        }
    }

    /// What a side has used.
    pub fn used(&self, side: usize) -> Used {
        match (side, &self.peer) {
            (PEER, Some(peer)) => peer.used(),
            _ => self.cadre.used(),
        }
    }

    /// Measures the same on each side, one side after the other.
    ///
    /// # Errors
    /// When a measurement fails.
    pub async fn each<T>(&self, measure: impl AsyncFn(&Target) -> Result<T>) -> Result<Figures<T>> {
        let mut figures = [const { None }; SIDES];
        for (side, figure) in figures.iter_mut().enumerate() {
            if let Some(target) = self.target(side) {
                *figure = Some(measure(&target).await.with_context(|| format!("agent {}", target.agent))?);
            }
        }
        Ok(figures)
    }

    async fn stop(self) -> Result<()> {
        self.cadre.stop().await?;
        match self.peer {
            Some(peer) => peer.stop().await,
            None => Ok(()),
        }
    }
}

/// The programs, and what is measured of them.
#[derive(Clone, Copy)]
struct Programs<'a> {
    only: &'a [What],
    cadre: &'a Path,
    python: Option<&'a Path>,
    model: SocketAddr,
}

impl Programs<'_> {
    fn wants(&self, what: What) -> bool {
        self.only.is_empty() || self.only.contains(&what)
    }

    async fn sides(&self, record: impl AsyncFn() -> Result<Record>) -> Result<Sides> {
        let peer = match self.python {
            Some(python) => Some(Server::peer(python, self.model, record().await?).await?),
            None => None,
        };
        let sides = Sides { cadre: Server::cadre(self.cadre, self.model, record().await?).await?, peer };
        // Workers dial in after the first answer of the server.
        sides.each(async |target| load::turns(target, 1).await).await?;
        Ok(sides)
    }

    async fn starts(&self, record: &impl AsyncFn() -> Result<Record>, table: &mut Table) -> Result<()> {
        let (mut own, mut other) = (Samples::default(), Samples::default());
        for _ in 0..STARTS {
            let server = Server::cadre(self.cadre, self.model, record().await?).await?;
            own.push(server.started());
            server.stop().await?;
            if let Some(python) = self.python {
                let server = Server::peer(python, self.model, record().await?).await?;
                other.push(server.started());
                server.stop().await?;
            }
        }
        let own = own.percentile(50);
        let row = Row::less(format!("start → first /health, p50 of {STARTS}"), "ms").own(own);
        table.push(row.goal(Some(Goal::AtMost(20.0))).beside(own, other.percentile(50)));
        Ok(())
    }
}

/// Measures all of it: with SQLite, with SQLite that a power cut may shorten, with PostgreSQL where its programs are
/// there.
///
/// # Errors
/// When a server does not start or a run ends badly.
pub async fn measure(program: &Path, python: Option<&Path>, only: &[What], table: &mut Table) -> Result<()> {
    let programs = Programs { only, cadre: program, python, model: stub::start().await? };
    let full = async || Ok(Record::Sqlite { normal: false });
    table.section("SQLite, every answer durable (the default)");
    whole(&programs, full, &Goals::SQLITE, table).await?;

    if programs.wants(What::Runs) {
        table.section("SQLite, a power cut may take the last moments (--durability normal); the peer as above");
        let sides = Programs { python: None, ..programs }.sides(async || Ok(Record::Sqlite { normal: true })).await?;
        measures::runs(&sides, 1, &Goals::NORMAL, table).await?;
        measures::runs(&sides, 32, &Goals::NORMAL, table).await?;
        sides.stop().await?;
    }

    if !Postgres::is_installed() {
        table.section("PostgreSQL: not measured, its server's programs are not there (Debian package postgresql)");
        return Ok(());
    }
    table.section("PostgreSQL on this machine, one server each, its own settings (fsync and synchronous_commit on)");
    whole(&programs, Record::postgres, &Goals::POSTGRES, table).await
}

async fn whole(
    programs: &Programs<'_>,
    record: impl AsyncFn() -> Result<Record>,
    goals: &Goals,
    table: &mut Table,
) -> Result<()> {
    if programs.wants(What::Start) {
        programs.starts(&record, table).await?;
    }
    let sides = programs.sides(record).await?;
    if programs.wants(What::Memory) {
        measures::memory(&sides, "idle", Some(15.0), table);
    }
    if programs.wants(What::Runs) {
        for clients in [1, 8, 32] {
            measures::runs(&sides, clients, goals, table).await?;
        }
    }
    if programs.wants(What::Queue) {
        measures::queues(&sides, table).await?;
    }
    if programs.wants(What::Streams) {
        measures::first_events(&sides, table).await?;
    }
    if programs.wants(What::Turns) {
        measures::flatness(&sides, table).await?;
    }
    if programs.wants(What::Memory) {
        measures::memory(&sides, "after all of this", Some(40.0), table);
    }
    if programs.wants(What::Replay) {
        measures::replays(&sides, goals, table).await?;
    }
    if programs.wants(What::Troubles) {
        troubles::measure(&sides.cadre, table).await?;
    }
    sides.stop().await
}
