//! The engine in a faked world: order of events, ends, and going on after every possible crash.

mod approvals;
mod continuing;
mod ends;
mod order;
mod resumption;
mod uploads;
mod workspace;

use std::sync::Arc;

use cadre_protocol::worker::Assignment;

use super::fakes::{self, Fake, World};
use super::turn::{self, Exit};

/// Runs an assignment to its end and gives the world back.
async fn run(world: World, assignment: Assignment) -> (Exit, Arc<World>) {
    let fake = Fake(Arc::new(world));
    let (_reins, control) = fakes::control();
    let exit = turn::run(assignment, fake.host(), control).await;
    (exit, fake.0)
}
