//! Time of a turn in a long session, and bytes that it writes to files: `cargo run --release -p cadre-store --example turns [FULL|NORMAL]`.
//!
//! A turn is an acceptance that starts at once, a model call, three batches and the end. Its cost must not depend on
//! how many came before.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "an example for people")]

#[path = "../tests/suite/fixtures.rs"]
#[expect(dead_code, clippy::panic, clippy::unwrap_used, reason = "shared with the tests")]
mod fixtures;

use std::time::Instant;

use cadre_protocol::message::Role;
use cadre_store::rows::{Claim, NewRun};
use cadre_store::sqlite::{Durability, SqliteStore};
use cadre_store::traits::{Journal as _, Schema as _};
use fixtures::{accepted, append, completed, lease, message, model_call, new_run, now, text};

const TURNS: usize = 1_010;
const REPEATS: usize = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let durability = match std::env::args().nth(1).as_deref() {
        Some("NORMAL") => Durability::Normal,
        _ => Durability::Full,
    };
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("cadre.db"), durability).unwrap();
    store.migrate().await.unwrap();
    let (mut times, mut bytes) = (Vec::with_capacity(TURNS), Vec::with_capacity(TURNS));
    for _ in 0..TURNS {
        let (begin, before) = (Instant::now(), written());
        turn(&store).await;
        times.push(begin.elapsed());
        bytes.push(written() - before);
    }
    for first in [1, 100, 1_000] {
        let range = first - 1..first - 1 + REPEATS;
        let (time, bytes) = (median(&times[range.clone()]), median(&bytes[range]));
        println!("turn {first:>5}: {time:>7.0?}, {bytes:>7} bytes (medians of {REPEATS})");
    }
    store.close().await;
}

/// Bytes that this process has handed to the kernel so far.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

fn median<T: Ord + Copy>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort();
    sorted[sorted.len() / 2]
}

async fn turn(store: &SqliteStore) {
    let lease = lease(store, "s", "w").await;
    let epoch = lease.epoch;
    let (run, _, started) = accepted(store, NewRun { claim: Some(Claim::Held(lease)), ..new_run("s") }).await;
    assert!(started.is_some());
    append(store, "s", &run.run_id, epoch, 0, vec![message(Role::User, "q"), text("one")]).await;
    store.model_call(model_call(&run.run_id, now(), Some(1))).await.unwrap();
    append(store, "s", &run.run_id, epoch, 2, vec![text("two"), message(Role::Assistant, "a")]).await;
    append(store, "s", &run.run_id, epoch, 4, vec![completed("a")]).await;
}
