//! The domain and the worker port over SQLite, with workers that do exactly what a test says, on a real listener.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, helpers included"
)]

mod budgets;
mod calls;
mod cancel;
mod continuing;
mod door;
mod feed;
mod flow;
mod line;
mod loss;
mod pausing;
mod seen;
mod shares;
mod support;
mod traces;
mod upstream;
