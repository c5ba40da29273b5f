//! Everything is killed at random beneath many runs, on two API servers and PostgreSQL: all complete, each effect happens
//! once or is reported as unknown, and no client misses or repeats an event. A row is printed for each round.
//!
//! Short as it stands; in full: `cargo xtask test --only matrix`.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::io::Write as _;

use cadre_e2e::matrix::Size;
use cadre_e2e::matrix::release::Release;
use cadre_e2e::matrix::round::Matrix;
use cadre_e2e::matrix::table;
use cadre_e2e::story::Story;

/// Past the test harness, which keeps to itself what a test prints that goes well.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[test]
fn whatever_is_killed_nothing_is_lost_and_nothing_happens_twice() {
    let story = Story::begin().unwrap();
    if !story.has_own_nodes() {
        return;
    }
    let size = Size::from_environment().unwrap();
    story.prepare_power().unwrap();
    let release = Release::install(&story).unwrap();
    say(&format!("{size:?}\n{}", table::head()));
    let matrix = Matrix::new(&story, &release, size).unwrap();
    let mut rows = Vec::new();
    for round in 1..=size.rounds {
        let row = matrix.round(round).unwrap();
        say(&row.line());
        row.faults.iter().for_each(|fault| say(&format!("      fault: {fault}")));
        rows.push(row);
    }
    say(&table::sums(&rows));
    assert_eq!(matrix.late(&rows).unwrap(), Vec::<String>::new());
    let faults: Vec<_> = rows.into_iter().flat_map(|row| row.faults).collect();
    assert_eq!(faults, Vec::<String>::new());
    drop(matrix);
    release.uninstall().unwrap();
}
